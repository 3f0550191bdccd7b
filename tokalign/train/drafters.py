"""A drafter that is trained on labelled windows, of any kind: batches, loss, acceptance, folder.

The kinds are subclasses of `DrafterLearner`, listed in `kinds.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.mlx.weights import content_fingerprint, vocabulary_size, write_weights
from tokalign.runtime.rounds import Array
from tokalign.storage import write_file
from tokalign.tables.finding import DRAFTER_CONFIG
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Candidates, InTurns, Labels, Shuffled
from tokalign.train.losses import losses_of
from tokalign.train.options import MEASURED, OWN_LOSSES, STRIDE, FitOptions, Labelling, Loss
from tokalign.train.run import write_record


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBatch:
    """W windows of L positions, and drafts after the same A positions of each.

    text: i32[W, L]. states: f[W, L, width], what the target computed there. places: i[A], the
    positions. following: i32[W, A, 1 + depth], the ids after each: the first one is committed when
    a draft begins. candidates: i32[C], ascending, the ids among which a drafter has to find what
    follows; log_weights: f32[C], see `Candidates`. correct: i[W, A, depth], the ids to guess, and
    probable: i[W, A, depth, k], what the target finds probable there, as indices into `candidates`.
    probabilities: f16[W, A, depth, k], of these. losses: what is learned, see `losses_of`.
    """

    text: NDArray[np.int32]
    states: Array
    places: NDArray[np.intp]
    following: NDArray[np.int32]
    candidates: NDArray[np.int32]
    log_weights: NDArray[np.float32]
    correct: NDArray[np.intp]
    probable: NDArray[np.intp]
    probabilities: NDArray[np.float16]
    losses: tuple[Loss, ...]


class WindowBatches(Shuffled):
    """Batches of windows, as `Labeller` labels them.

    window: ids of each; None for a drafter that reads one state, whose windows have one position.
    options: the drafts of a batch, about, its losses, and how `Candidates` are drawn. read: the
    target's states f[W, L, width] for windows i[W, L], where they are not among the labels.
    """

    def __init__(
        self,
        labels: Labels,
        labelling: Labelling,
        options: FitOptions,
        *,
        window: int | None = None,
        vocabulary_size: int,
        read: Callable[[NDArray[np.int32]], Array] | None = None,
    ) -> None:
        self.length = length = 1 if window is None else labelling.positions_of(window)
        self.windows, self._stride = len(labels.ids) // length, min(STRIDE, length)
        together = max(1, options.batch * self._stride // length)
        super().__init__(self.windows * self._stride, together, options.seed)
        self._labels, self._labelling = labels, labelling
        self._losses, self._read = options.losses, read
        following = labels.ids[:, 2 : 1 + labelling.future]
        seen = np.bincount(following.reshape(-1), minlength=vocabulary_size)
        self._candidates = Candidates(seen, options.candidates)

    def __getitem__(self, number: int) -> WindowBatch:
        windows, phases = np.divmod(np.sort(self.part(number)), self._stride)
        return self.drafts(windows, int(phases[0]), (self._seed, 1, number))

    def drafts(
        self, windows: NDArray[np.intp], phase: int = -1, seed: tuple[int, ...] = (0,)
    ) -> WindowBatch:
        """Drafts after every `STRIDE`th position of windows, from position `phase` on, or from the
        last one of the first `STRIDE`.

        seed: of the candidates that are drawn.
        """
        depth, k = self._labelling.future - 1, self._labelling.probable
        rows = windows[:, None] * self.length + np.arange(self.length)
        places = np.arange(phase % self._stride, self.length, self._stride)
        values, ids = self._labels.values[rows], self._labels.ids[rows]
        text, following = ids[..., 0], ids[:, places, 1:]
        needed, found = np.unique(following[..., 1:], return_inverse=True)
        candidates, log_weights = self._candidates.draw(needed, seed)
        found = np.searchsorted(candidates, needed)[found].reshape(*following.shape[:2], -1)
        shape, width = (*following.shape[:2], depth, k), values.shape[-1] - depth * k
        return WindowBatch(
            text=text,
            states=self._read(text) if self._read else mx.array(values[..., :width]),
            places=places,
            following=following[..., : 1 + depth],
            candidates=candidates,
            log_weights=log_weights,
            correct=found[..., :depth],
            probable=found[..., depth:].reshape(shape),
            probabilities=values[:, places, width:].reshape(shape),
            losses=self._losses,
        )


Made: TypeAlias = tuple[Any, dict[str, Any]]
"""A drafter, and its `config.json`."""


def halved(weight: Array) -> Array:
    """In float16."""
    return weight.astype(mx.float16)


class DrafterLearner(ABC):
    """A drafter and its labels (`Learner`); it is written in float16.

    shape: of a new one. begin_with: the folder of a drafter that is trained on instead.
    remarks: what people should know before it is trained.
    """

    reads_window: ClassVar[bool] = True
    """Whether a draft depends on the window before its position, or on the state there alone."""

    def __init__(
        self,
        target: LanguageModel[TargetId],
        shape: Any,
        labels: LabelledCorpus,
        options: FitOptions,
        begin_with: Path | None = None,
    ) -> None:
        labelling = labels.options.labelling
        self.options, self.labels, self.shape = options, labels, shape
        self.remarks = list[str]()
        mx.random.seed(options.seed)
        self.module, self._config = (
            self.new(target) if begin_with is None else self.continued(target, begin_with)
        )
        self.identity = [self._config, content_fingerprint(self.module)]
        read = None
        if not labelling.keeps_states:
            read = LayerOutputs(target.model, labelling.taps).read
        batches = partial(
            WindowBatches,
            window=labels.options.window if self.reads_window else None,
            vocabulary_size=vocabulary_size(target.model),
            read=read,
        )
        self.batches: Shuffled | InTurns = batches(labels.training, labelling, options)
        if (own := labels.own) is not None:
            learned = replace(options, losses=OWN_LOSSES)
            written = batches(own.training, own.options.labelling, learned)
            self.batches = InTurns(self.batches, written)
        measured = replace(options, batch=1, candidates=None)
        self._held_out = batches(labels.held_out, labels.held_out_labelling or labelling, measured)
        self.positions = sum(len(one.training.ids) for one in labels.sets)
        depth = labelling.future - 1
        weights = options.decay ** np.arange(depth)
        self._weights = mx.array(weights * depth / weights.sum(), dtype=mx.float32)

    @abstractmethod
    def new(self, target: LanguageModel[TargetId]) -> Made:
        """A new drafter of the shape."""

    @abstractmethod
    def continued(self, target: LanguageModel[TargetId], folder: Path) -> Made:
        """The drafter in a folder. Raises: as what loads it; UsageError for an untrained kind."""

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
        write_record(folder, record)
        write_weights(folder / "model.safetensors", self.weights(), {"format": "mlx"})
        write_file(folder / DRAFTER_CONFIG, json.dumps(self._config, indent=1) + "\n")

    def weights(self) -> dict[str, Array]:
        """What its folder has."""
        return dict(tree_flatten(tree_map(halved, self.module.parameters())))
