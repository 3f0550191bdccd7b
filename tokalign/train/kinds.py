"""The kinds of drafter that are trained on windows, and the recurrent one, which needs no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import read_drafter
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.mlx.trained_drafter import TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.blocks import BlockLearner
from tokalign.train.drafters import DrafterLearner, Made, WindowBatch
from tokalign.train.eagles import EagleLearner
from tokalign.train.options import DrafterKind


class RecurrentLearner(DrafterLearner):
    """A recurrent drafter (`DrafterLearner`)."""

    reads_window = False

    def new(self, target: LanguageModel[TargetId]) -> Made:
        return RecurrentDrafter(self.shape, TargetEnds.of(target.model)), self.shape.json

    def continued(self, target: LanguageModel[TargetId], folder: Path) -> Made:
        drafter: Any = read_drafter(folder, target.model)
        return drafter, drafter.config.json

    def states(self, batch: WindowBatch) -> Array:
        state, exits = self.module.initial_state(batch.states), []
        for ids in mx.array(batch.following[..., :-1]).transpose(2, 0, 1):
            state, exit_ = self.module.advance(state, ids)
            exits.append(exit_)
        return mx.stack(exits, axis=2)

    def logits(self, states: Array, ids: Array = None) -> Array:
        everything = ids is None or len(ids) == self.module.config.vocabulary_size
        return self.module.logits(states, None if everything else ids)


LEARNERS: Mapping[DrafterKind, type[DrafterLearner]] = {
    "redrafter": RecurrentLearner,
    "dflash": BlockLearner,
    "eagle3": EagleLearner,
}
