"""A recurrent drafter to be trained: it starts from one state, so a window has one position."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter, save_drafter, target_fingerprints
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.drafters import DrafterLearner, Makers, halved
from tokalign.train.windows import WindowBatch


def new_recurrent(
    target: LanguageModel[TargetId], config: DrafterConfig, seed: int = 0
) -> tuple[RecurrentDrafter, dict[str, Any]]:
    """A drafter with random weights, and its shape."""
    mx.random.seed(seed)
    return RecurrentDrafter(config, TargetEnds.of(target.model)), config.to_json()


def continued_recurrent(
    target: LanguageModel[TargetId], folder: Path
) -> tuple[RecurrentDrafter, dict[str, Any]]:
    """The drafter in a folder, to be trained on. Raises: as `load_drafter`."""
    drafter = load_drafter(folder, target)
    return drafter, drafter.config.to_json()


class RecurrentLearner(DrafterLearner):
    """A recurrent drafter (`DrafterLearner`)."""

    reads_window = False
    makers = Makers(new_recurrent, continued_recurrent)

    def __init__(self, target: LanguageModel[TargetId], *parts: Any) -> None:
        super().__init__(target, *parts)
        self._fingerprints = target_fingerprints(target)

    def states(self, batch: WindowBatch) -> Array:
        state, exits = self.module.initial_state(batch.states), []
        for ids in mx.array(batch.following[..., :-1]).transpose(2, 0, 1):
            recurrent, exit_ = self.module.advance(state, ids)
            state = state._replace(recurrent=recurrent)
            exits.append(exit_)
        return mx.stack(exits, axis=2)

    def logits(self, states: Array, ids: Array = None) -> Array:
        everything = ids is None or len(ids) == self.module.config.vocabulary_size
        return self.module.logits(states) if everything else self.module.logits_among(states, ids)

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        trained = self.module.parameters()
        self.module.update(tree_map(halved, trained))
        save_drafter(folder, self.module, self._fingerprints, record)
        self.module.update(trained)
