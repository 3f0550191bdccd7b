"""A drafter that is trained on labelled windows, whatever its kind: loss, acceptance and folder.

The kinds are subclasses of `DrafterLearner`, listed in `kinds.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size
from tokalign.runtime.rounds import Array
from tokalign.storage import write_file
from tokalign.tables.finding import DRAFTER_CONFIG
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.card import RECORD
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import InTurns
from tokalign.train.losses import losses_of
from tokalign.train.options import MEASURED, OWN_LOSSES, STRIDE, FitOptions
from tokalign.train.run import WEIGHTS, write_weights
from tokalign.train.windows import WindowBatch, WindowBatches


def halved(weight: Array) -> Array:
    """In float16."""
    return weight.astype(mx.float16)


def _read_again(outputs: LayerOutputs, ids: NDArray[np.int32]) -> Array:
    """The target's states f[W, L, width] for ids i[W, L]."""
    outputs.model(mx.array(ids))
    return mx.stop_gradient(outputs.take_all())


class DrafterLearner(ABC):
    """A drafter and its labels (`Learner`); it is written in float16.

    shape: of a new one. begin_with: the folder of a drafter that is trained on instead.
    """

    reads_window: ClassVar[bool] = True
    """Whether a draft depends on the window before its position, or on the state there alone."""

    remarks: tuple[str, ...] = ()
    """What people should know before it is trained."""

    def __init__(
        self,
        target: LanguageModel[TargetId],
        shape: Any,
        labels: LabelledCorpus,
        options: FitOptions,
        begin_with: Path | None = None,
    ) -> None:
        labelling = labels.options.labelling
        self.options, self.labels = options, labels
        mx.random.seed(options.seed)
        self.module, self._config = (
            self.new(target, shape) if begin_with is None else self.continued(target, begin_with)
        )
        # A kind that learns more of its shape from the labels adds it to the config, so to both.
        self.identity = [self._config, content_fingerprint(self.module)]
        read = None
        if not labelling.keeps_states:
            read = partial(_read_again, LayerOutputs(target.model, labelling.taps))
        batches = partial(
            WindowBatches,
            window=labels.options.window if self.reads_window else None,
            vocabulary_size=vocabulary_size(target.model),
            seed=options.seed,
            read=read,
        )
        drawn: Any = {"size": options.batch, "candidates": options.candidates}
        sets = [batches(labels.training, labelling, losses=options.losses, **drawn)]
        if (own := labels.own) is not None:
            sets.append(batches(own.training, own.options.labelling, losses=OWN_LOSSES, **drawn))
        self.batches = InTurns(sets)
        self._held_out = batches(labels.held_out, labels.held_out_labelling or labelling, size=1)
        self.positions = sum(len(one.training.ids) for one in labels.sets)
        depth = labelling.future - 1
        weights = options.decay ** np.arange(depth)
        self._weights = mx.array(weights * depth / weights.sum(), dtype=mx.float32)

    @abstractmethod
    def new(self, target: LanguageModel[TargetId], shape: Any) -> tuple[Any, dict[str, Any]]:
        """A new drafter of this shape, and its `config.json`."""

    @abstractmethod
    def continued(
        self, target: LanguageModel[TargetId], folder: Path
    ) -> tuple[Any, dict[str, Any]]:
        """The drafter in a folder, and its `config.json`. Raises: as what loads it; UsageError for
        a network that is not trained."""

    @abstractmethod
    def states(self, batch: WindowBatch) -> Array:
        """What the head reads f[W, A, depth, width] for each guess, after the ids that are right:
        only such guesses are accepted."""

    @abstractmethod
    def logits(self, states: Array, ids: Array = None) -> Array:
        """f[..., width] -> logits f[..., vocabulary], or of ids i[n] alone."""

    def loss(self, batch: WindowBatch) -> Array:
        """The mean of the losses over all positions and depths, weighted by depth, in nats."""
        logits = self.logits(self.states(batch), mx.array(batch.candidates)).astype(mx.float32)
        whole = mx.logsumexp(logits + mx.array(batch.log_weights), axis=-1, keepdims=True)
        found = np.concatenate([batch.correct[..., None], batch.probable], axis=-1)
        log_q = mx.take_along_axis(logits, mx.array(found), axis=-1) - whole
        losses = losses_of(log_q, mx.array(batch.probabilities), batch.losses)
        return (losses * self._weights).mean()

    def accepted(self) -> NDArray[np.intp]:
        """For each draft after held-out positions how many leading guesses of a chain are right."""
        windows, counts = np.arange(self._held_out.windows), []
        drafts = len(windows) * -(-self._held_out.length // STRIDE)
        for some in np.array_split(windows, min(len(windows), -(-drafts // MEASURED))):
            batch = self._held_out.drafts(some)
            guesses = np.array(mx.argmax(self.logits(self.states(batch)), axis=-1))
            right = np.logical_and.accumulate(guesses == batch.correct, axis=-1)
            counts.append(right.sum(axis=-1).reshape(-1))
        return np.concatenate(counts)

    def measure(self) -> tuple[float, ...]:
        """The share of positions at which the first d guesses are all right, d = 1, 2, …"""
        counts = self.accepted()
        return tuple(float((counts >= d).mean()) for d in range(1, 1 + self._weights.size))

    def save(self, folder: Path, record: Mapping[str, Any]) -> None:
        weights = dict(tree_flatten(tree_map(halved, self.module.parameters())))
        write_file(folder / RECORD, json.dumps(record, indent=1) + "\n", parents=True)
        write_weights(folder / WEIGHTS, weights | self.shared_weights())
        write_file(folder / DRAFTER_CONFIG, json.dumps(self._config, indent=1) + "\n")

    def shared_weights(self) -> dict[str, Array]:
        """What the format wants in the folder besides what was trained."""
        return {}
