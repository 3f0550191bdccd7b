"""Batches of labelled windows: a drafter reads some, and drafts after many positions of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.rounds import Array
from tokalign.train.labels import Candidates, Labels, Shuffled
from tokalign.train.options import STRIDE, Labelling, Loss


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
    size: drafts of a batch, about. candidates: as of `Candidates`. losses: of each batch. read: the
    target's states f[W, L, width] for windows i[W, L], where they are not among the labels.
    """

    def __init__(
        self,
        labels: Labels,
        labelling: Labelling,
        *,
        window: int | None = None,
        size: int,
        vocabulary_size: int,
        candidates: int | None = None,
        seed: int = 0,
        losses: tuple[Loss, ...] = ("marginal",),
        read: Callable[[NDArray[np.int32]], Array] | None = None,
    ) -> None:
        self.length = length = 1 if window is None else labelling.positions_of(window)
        self.windows, self._stride = len(labels.ids) // length, min(STRIDE, length)
        together = max(1, size * self._stride // length)
        super().__init__(self.windows * self._stride, together, seed)
        self._labels, self._labelling = labels, labelling
        self._losses, self._read = losses, read
        following = labels.ids[:, 2 : 1 + labelling.future]
        seen = np.bincount(following.reshape(-1), minlength=vocabulary_size)
        self._candidates = Candidates(seen, candidates)

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
