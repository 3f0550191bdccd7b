"""Batches of labelled positions, each known by its number alone, so that runs resume anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tokalign.train.labels import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Positions, and the ids among which a drafter has to find what follows them.

    hidden: f16[B, H]. read: i32[B, depth], the ids that the drafter reads.
    candidates: i32[C], ascending. correct: i[B, depth], what follows each read id, as an index into
    `candidates`. log_weights: f32[C], see `Batches`.
    """

    hidden: NDArray[np.float16]
    read: NDArray[np.int32]
    candidates: NDArray[np.int32]
    correct: NDArray[np.intp]
    log_weights: NDArray[np.float32]


class Batches:
    """The batches of a training run, in a random order that differs from epoch to epoch.

    size: positions of a batch. candidates: how many ids the softmax goes over, None for the whole
    vocabulary. They are all ids that follow anywhere in the batch, and others drawn uniformly, each
    of which stands for as many as it was drawn from: its weight makes the sum of exponentials an
    unbiased estimate of that over the whole vocabulary.
    Source: importance sampling of the partition function (Bengio and Senecal, 2003).
    Raises: ValueError if the candidates might be too few for the ids of one batch.
    """

    def __init__(
        self, labels: Labels, *, size: int, vocabulary_size: int, candidates: int | None, seed: int
    ) -> None:
        self._labels, self._vocabulary_size, self._seed = labels, vocabulary_size, seed
        self.size = min(size, len(labels.ids))
        most = self.size * (labels.ids.shape[1] - 1)
        if candidates is not None and candidates <= min(most, vocabulary_size - 1):
            raise ValueError(
                f"a batch may ask for {most} different ids, so {candidates} candidates are too few"
            )
        self._candidates = (
            None if candidates is None or candidates >= vocabulary_size else candidates
        )
        self._order = lru_cache(maxsize=2)(self._order_of)

    @property
    def per_epoch(self) -> int:
        """How many batches have each position at most once."""
        return len(self._labels.ids) // self.size

    def __getitem__(self, number: int) -> Batch:
        """The batch of a number, 0 or more; after the last of an epoch comes another epoch."""
        epoch, index = divmod(number, self.per_epoch)
        rows = np.sort(self._order(epoch)[index * self.size : (index + 1) * self.size])
        ids = self._labels.ids[rows]
        following, correct = np.unique(ids[:, 1:], return_inverse=True)
        candidates, log_weights = self._with_others(following, number)
        return Batch(
            hidden=self._labels.hidden[rows],
            read=ids[:, :-1],
            candidates=candidates,
            correct=np.searchsorted(candidates, following)[correct].reshape(ids[:, 1:].shape),
            log_weights=log_weights,
        )

    def _order_of(self, epoch: int) -> NDArray[np.intp]:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._labels.ids))

    def _with_others(
        self, following: NDArray[np.int32], number: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Candidates i32[C], ascending, and their logarithmic weights f32[C]."""
        everything = np.arange(self._vocabulary_size, dtype=np.int32)
        if self._candidates is None:
            return everything, np.zeros(len(everything), np.float32)
        left = np.delete(everything, following)
        count = self._candidates - len(following)
        drawn = np.random.default_rng((self._seed, 1, number)).choice(left, count, replace=False)
        candidates = np.concatenate([following, drawn])
        weights = np.full(len(candidates), np.log(len(left) / count), np.float32)
        weights[: len(following)] = 0
        order = np.argsort(candidates)
        return candidates[order], weights[order]
