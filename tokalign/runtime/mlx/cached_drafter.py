"""Drafters with a key-value cache of their own, which read hidden states and the ids that follow.

Such a drafter reads pairs: what the target computed for an id, and the next id. Its output for a
pair gives the id after it, and stands for the target's hidden state of that id. So it goes on alone
from there: the beams of a search are rows of one cache, each of which sees the committed ids and
its own ancestors. What it read of its own guesses is taken back when the round is over; then it
reads what the target computed for the ids that were accepted.
Source: EAGLE (Li et al., 2024), section 4.1; a search as a tree in one cache: EAGLE-2, section 4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from tokalign.runtime.mlx.beam_search import BeamSession, State
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.tree_attention import RowPositions, with_row_positions
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId


class CachedDrafter(TrainedDrafter):
    """A network that reads pairs of an id and a hidden state, with a cache for its layers. Rotary
    embeddings and attention are modules that are called as those of mlx-lm.

    norm: before its head. goes_on_normed: whether it goes on from its outputs after that.
    """

    layers: list[Any]
    norm: Any
    goes_on_normed: bool

    def states(self, watched: Array) -> Array:
        """Hidden states f[n, width] of the rows that `watch` keeps, f[n, ...]."""
        return watched.astype(self.norm.weight.dtype)

    @abstractmethod
    def read(self, ids: Array, states: Array, cache: Sequence[Any], mask: Any) -> Array:
        """Ids i[n] and the hidden states f[n, width] of the ids before them -> outputs f[n, width].
        mask: "causal", or bool[n, cached + n]."""

    def output(self, x: Array) -> Array:
        """What it goes on from, f[..., width] of its last layer."""
        return self.norm(x) if self.goes_on_normed else x

    def normed(self, outputs: Array) -> Array:
        """What its head reads of outputs f[..., width]."""
        return outputs if self.goes_on_normed else self.norm(outputs)

    def logits(self, outputs: Array) -> Array:
        """Outputs f[n, width] -> logits f[n, vocabulary of the target], -inf for ids that its head
        does not know."""
        return self.unembed(self.normed(outputs))

    def new_cache(self, position: int) -> list[Any]:
        return [KVCache() for _ in self.layers]

    def layers_after(self, watched: Array) -> list[Any]:
        cache = self.new_cache(0)
        self.read(mx.array([0]), self.states(watched), cache, "causal")
        return cache

    def session(self, target: TargetModelSession) -> CachedSession:
        return CachedSession(self, target)


class CachedSession(BeamSession):
    """A drafter with a cache, of one request.

    Its state after some beams is the outputs f[beams, width] of their last ids, and which rows
    after the committed ones each of them sees, bool[beams, rows], itself included.
    """

    def __init__(self, drafter: CachedDrafter, target: TargetModelSession) -> None:
        self._positions = RowPositions()
        super().__init__(with_row_positions(drafter, self._positions), target)
        self._depth = self._guesses = 0  # of the latest search, whose guesses the cache has read

    def begin(self, ids: Sequence[TargetId]) -> tuple[State, Array] | None:
        if (watched := self._unread(ids)) is None:
            return None
        for layer in self._cache:
            layer.trim(self._guesses)
        self._depth = self._guesses = 0
        begin = len(ids) - len(watched)
        self._positions.now = mx.arange(begin, len(ids))
        following = mx.array([*ids[begin:]], mx.uint32)
        states = self._drafter.states(watched)
        outputs = self._drafter.read(following, states, self._cache, "causal")[-1:]
        return (outputs, mx.zeros((1, 0), mx.bool_)), self._drafter.logits(outputs)

    def step(self, state: State, ids: Array) -> tuple[State, Array]:
        (before, sees), beams = state, len(ids)
        self._depth += 1
        self._positions.now = mx.full((beams,), self._end + self._depth)
        committed = mx.ones((beams, self._cache[0].offset - self._guesses), mx.bool_)
        sees = mx.concatenate([sees, mx.eye(beams, dtype=mx.bool_)], axis=1)
        self._guesses = sees.shape[1]
        mask = mx.concatenate([committed, sees], axis=1)
        outputs = self._drafter.read(ids, before, self._cache, mask)
        return (outputs, sees), self._drafter.logits(outputs)
