"""Training a recurrent drafter on labels: what `run.py` needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import load_drafter, save_drafter, target_fingerprints
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig, RecurrentDrafter, TargetEnds
from tokalign.runtime.rounds import Array
from tokalign.tables.finding import read_drafter_config
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Batch, Batches, Labels, Shuffled
from tokalign.train.options import FitOptions

_ROWS = 64


def loss_of(drafter: RecurrentDrafter, batch: Batch) -> Array:
    """The mean cross-entropy of what follows, over all positions and depths, in nats."""
    exits = _exits(drafter, batch.hidden, batch.read)
    if len(batch.candidates) == drafter.config.vocabulary_size:
        logits = drafter.logits(exits)
    else:
        logits = drafter.logits_among(exits, mx.array(batch.candidates))
    logits = logits.astype(mx.float32)
    right = mx.take_along_axis(logits, mx.array(batch.correct)[..., None], axis=-1)[..., 0]
    return (mx.logsumexp(logits + mx.array(batch.log_weights), axis=-1) - right).mean()


def measure_acceptance(drafter: RecurrentDrafter, labels: Labels) -> tuple[float, ...]:
    """The share of positions at which the first d guesses are all right, d = 1, 2, …"""
    counts, depth = accepted_counts(drafter, labels), labels.ids.shape[1] - 1
    return tuple(float((counts >= d).mean()) for d in range(1, depth + 1))


def accepted_counts(drafter: RecurrentDrafter, labels: Labels) -> NDArray[np.intp]:
    """For each position how many leading guesses of a chain are right, i[n]."""
    counts = []
    for first in range(0, len(labels.ids), _ROWS):
        ids = np.asarray(labels.ids[first : first + _ROWS])
        exits = _exits(drafter, labels.values[first : first + _ROWS], ids[:, :-1])
        right = np.array(mx.argmax(drafter.logits(exits), axis=-1)) == ids[:, 1:]
        counts.append(np.logical_and.accumulate(right, axis=1).sum(axis=1))
    return np.concatenate(counts)


def _exits(drafter: RecurrentDrafter, hidden: NDArray[Any], read: NDArray[Any]) -> Array:
    """The outputs f[B, depth, E] of the residual blocks after each id of `read` i[B, depth].

    The drafter reads the ids that are right, because only guesses after right ones are accepted.
    """
    state, exits = drafter.initial_state(mx.array(np.asarray(hidden))), []
    for ids in mx.array(read).T:
        recurrent, exit_ = drafter.advance(state, ids)
        state = state._replace(recurrent=recurrent)
        exits.append(exit_)
    return mx.stack(exits, axis=1)


class RecurrentLearner:
    """A recurrent drafter and its labels (`Learner`); it is written in float16."""

    def __init__(
        self,
        target: LanguageModel[TargetId],
        config: DrafterConfig,
        labels: LabelledCorpus,
        options: FitOptions,
    ) -> None:
        self._target, self.labels, self.options = target, labels, options
        self._fingerprints = target_fingerprints(target)
        self.identity = config.to_json()
        self.positions = len(labels.training.ids)
        self.batches: Shuffled = Batches(
            labels.training,
            size=options.batch,
            vocabulary_size=config.vocabulary_size,
            candidates=options.candidates,
            seed=options.seed,
        )
        mx.random.seed(options.seed)
        self.module = RecurrentDrafter(config, TargetEnds.of(target.model))

    def loss(self, batch: Batch) -> Array:
        return loss_of(self.module, batch)

    def measure(self) -> tuple[float, ...]:
        return measure_acceptance(self.module, self.labels.held_out)

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        save_drafter(folder, self.module, self._fingerprints, record)

    def publish(self, best: Path, output: Path) -> None:
        drafter = load_drafter(best, self._target)
        drafter.set_dtype(mx.float16)
        save_drafter(output, drafter, self._fingerprints, read_drafter_config(best)["training"])
