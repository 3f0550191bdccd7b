"""A drafter that reads one id after another, at work for one request: a beam search, and its tree.

Every step of the search is one pass of the drafter over its beams, and which beams go on is decided
on the device, too. So the host queues the whole search and waits once for its result.

A search keeps `width` beams. In every step each beam is continued by its top `count` ids, and the
best of these continuations are the next step's beams. All of them are children of a beam, so
together they are a tree in which every shared prefix exists once, where the published code merges
candidates afterwards (`dedup_prefix`). More continuations are listed than are worth verifying,
which costs nothing on top of a step; the expected gain decides which of them become rows.
Where the target samples, the search predicts its choices, because the drafter shares its noise.
Source: ReDrafter (Cheng et al., 2024), section 3.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import exp, isfinite
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from tokalign.runtime.mlx.sampling import Sampling, expected
from tokalign.runtime.mlx.session import top_k, wait
from tokalign.runtime.mlx.trained_drafter import DrafterSession
from tokalign.runtime.rounds import Array, Meanwhile, nothing
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

SOURCE = "drafter"


class BeamShape(NamedTuple):
    """How wide and how long a search is: beams, and ids of each beam."""

    width: int
    length: int


class Beams(NamedTuple):
    """The continuations that a search looked at.

    ids, logprobs: [length][width][count], the most probable ids after every beam and their
    conditional log-probabilities; in the first step there is one beam only. chosen:
    [length][width], which continuations are the next beams, most probable first:
    beam * count + place.
    """

    ids: Sequence[Sequence[Sequence[TargetId]]]
    logprobs: Sequence[Sequence[Sequence[float]]]
    chosen: Sequence[Sequence[int]]

    def tree(self, source: str) -> TokenTree[TargetId]:
        """All possible continuations, the chain of the most probable beam first."""
        ids: list[TargetId] = []
        parents: list[int] = []
        probabilities: list[float] = []
        beams: list[int | None] = [-1]  # the index of what each beam ends with; None if impossible
        for chosen, rows, of_rows in zip(self.chosen, self.ids, self.logprobs, strict=True):
            places: list[int | None] = []
            for parent, row, of_row in zip(beams, rows, of_rows, strict=False):  # the first is one
                for token, logprob in zip(row, of_row, strict=True):
                    if parent is None or not isfinite(logprob):
                        places.append(None)
                        continue
                    places.append(len(ids))
                    ids.append(token)
                    parents.append(parent)
                    probabilities.append(exp(logprob))
            beams = [places[place] for place in chosen]
        count = len(ids)
        tree = TokenTree(tuple(ids), tuple(parents), (source,) * count, tuple(probabilities))
        first = tree.path_to(-1 if beams[0] is None else beams[0])
        return tree.select([*first, *sorted({*range(count)} - {*first})])


State: TypeAlias = tuple[Array, ...]
"""What a drafter knows after the ids of some beams: arrays with a row for each beam."""


def of_beams(state: State, beams: Array) -> State:
    """The states of the beams i[n], which may repeat."""
    return tuple(part[beams] for part in state)


def _padded(rows: Array, width: int, value: float) -> Array:
    """As many rows as there are beams; the first step has one."""
    missing = width - rows.shape[0]
    return mx.pad(rows, [(0, missing), (0, 0)], constant_values=value) if missing else rows


class BeamSession(DrafterSession, ABC):
    """A drafter of one request; it answers None before the target's first pass."""

    @abstractmethod
    def begin(self, ids: Sequence[TargetId]) -> tuple[State, Array] | None:
        """State and logits f[1, vocabulary] after the last of `ids`; one pass, lazy. None where the
        target's passes have not left what it starts from."""

    @abstractmethod
    def step(self, state: State, ids: Array) -> tuple[State, Array]:
        """State after the ids i[beams], and logits f[beams, vocabulary]; one pass, lazy."""

    def search(
        self,
        ids: Sequence[TargetId],
        shape: BeamShape,
        *,
        count: int,
        sampler: Sampling | None = None,
        meanwhile: Meanwhile = nothing,
    ) -> Beams | None:
        """Search for what follows `ids`, with one step for each id of a beam.

        count: ids listed after every beam, at least as many as there are beams.
        sampler: predicts the choices of a target that samples (`Sampling.expect`); without one,
        probabilities are the drafter's own. meanwhile: is done before the host waits.
        """
        if self.head is not None:
            self.head.follow(ids)
        if (begun := self.begin(ids)) is None:
            return None
        (state, logits), (width, length) = begun, shape
        count = min(max(count, width), logits.shape[-1])
        steps: list[tuple[Array, Array, Array]] = []
        reached = mx.zeros((1, 1))
        for position in range(len(ids), len(ids) + length):
            logprobs = expected(sampler, logits.astype(mx.float32), [position] * len(logits))
            listed, values = top_k(logprobs, count)
            paths = (reached + values).reshape(-1)
            best = mx.argsort(-paths)[:width]
            steps.append((_padded(listed, width, 0), _padded(values, width, -mx.inf), best))
            if len(steps) < length:
                reached = paths[best][:, None]
                state = of_beams(state, best // count)
                state, logits = self.step(state, listed.reshape(-1)[best])
        found: list[Array] = [mx.stack([*parts]) for parts in zip(*steps, strict=True)]
        self.passes += length
        wait(ids, meanwhile, *found)
        return Beams(*(array.tolist() for array in found))


DEFAULT_SHAPE = BeamShape(width=4, length=4)
"""Beams that are searched where the rows are chosen by their gain."""
