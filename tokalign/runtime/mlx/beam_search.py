"""A recurrent drafter at work for one request: a beam search, and the tree of what it found.

It has no cache: a round starts from the target's hidden state in the row that chose the last
committed id, which the target's session has kept. Every step of the beam search is one pass of the
drafter over its beams, and which beams go on is decided on the device, too. So the host queues the
whole search and waits once for its result.

A search keeps `width` beams. In every step each beam is continued by its top `count` ids, and the
best of these continuations are the next step's beams. All of them are children of a beam, so
together they are a tree in which every shared prefix exists once, where the published code merges
candidates afterwards (`dedup_prefix`). More continuations are listed than are worth verifying,
which costs nothing on top of a step; the expected gain decides which of them become rows.
Where the target samples, the search predicts its choices, because the drafter shares its noise.
With logits processors, which need the history of every row, a chain is drawn instead.
Source: ReDrafter (Cheng et al., 2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp, isfinite
from typing import NamedTuple, TypeAlias, cast

import mlx.core as mx

from tokalign.runtime.mlx.recurrent_drafter import DrafterState, RecurrentDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession, top_k
from tokalign.runtime.rounds import Array
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
        """All continuations, the chain of the most probable beam first."""
        return self._as_tree(self._nodes(), source)

    def beam_tree(self, source: str) -> TokenTree[TargetId]:
        """The last step's beams alone: a beam of fixed shape, its shared prefixes merged.

        Example: the beams 7 8 9, 7 8 4 and 7 2 3 are six rows instead of nine.
        """
        kept = {node for place in self.chosen[-1] for node in self._path(place)}
        return self._as_tree((node for node in self._nodes() if node in kept), source)

    @property
    def _count(self) -> int:
        return len(self.ids[0][0])

    def _parent(self, step: int, place: int) -> int:
        """The place in the step before that a continuation follows; -1 in the first one."""
        return self.chosen[step - 1][place // self._count] if step else -1

    def _path(self, place: int) -> list[tuple[int, int]]:
        """Step and place of the continuations that lead to one of the last step."""
        path = []
        for step in reversed(range(len(self.chosen))):
            path.append((step, place))
            place = self._parent(step, place)
        return path[::-1]

    def _nodes(self) -> Iterator[tuple[int, int]]:
        """Step and place of every continuation, those of the most probable beam first."""
        first = self._path(self.chosen[-1][0])
        yield from first
        for step, of_beams in enumerate(self.logprobs):
            for beam, values in enumerate(of_beams if step else of_beams[:1]):
                for rank, value in enumerate(values):
                    node = step, beam * self._count + rank
                    if isfinite(value) and node not in first:
                        yield node

    def _as_tree(self, nodes: Iterator[tuple[int, int]], source: str) -> TokenTree[TargetId]:
        """These continuations, of which none comes before the one that it follows."""
        index: dict[tuple[int, int], int] = {}
        ids: list[TargetId] = []
        parents: list[int] = []
        probabilities: list[float] = []
        for step, place in nodes:
            beam, rank = divmod(place, self._count)
            parent = index.get((step - 1, self._parent(step, place))) if step else -1
            if parent is None:  # its beam is impossible
                continue
            index[step, place] = len(ids)
            ids.append(self.ids[step][beam][rank])
            parents.append(parent)
            probabilities.append(exp(self.logprobs[step][beam][rank]))
        count = len(ids)
        return TokenTree(tuple(ids), tuple(parents), (source,) * count, tuple(probabilities))


Step: TypeAlias = Callable[[DrafterState, Array], tuple[DrafterState, Array]]
"""A drafter's step: (state, ids i[beams]) -> (state after them, logits f[beams, vocabulary])."""


def beam_search(
    step: Step,
    state: DrafterState,
    last: Array,
    shape: BeamShape,
    *,
    count: int,
    expect: Callable[[Array, int], Array],
) -> tuple[Array, Array, Array]:
    """The arrays of a `Beams`: i[length, width, count], f[length, width, count], i[length, width].

    state: before the ids `last` i[1] are read. count: ids listed after every beam, from the width,
    so that the best continuations are among them, to the size of the vocabulary. expect: turns
    logits f[beams, vocabulary] of a step (0, 1, ...) into the log-probabilities that the target
    chooses each id.
    Lazy: nothing waits for the device.
    """
    width, length = shape
    ids, values, chosen = [], [], []
    token, reached = last, mx.zeros((1, 1))
    for number in range(length):
        state, logits = step(state, token)
        found, of_found = top_k(expect(logits, number), count)
        paths = (reached + of_found).reshape(-1)
        best = mx.argsort(-paths)[:width]
        ids.append(_padded(found, width, 0))
        values.append(_padded(of_found, width, -mx.inf))
        chosen.append(best)
        beams = best // count
        state = DrafterState(state.recurrent[beams], state.context)
        token, reached = found.reshape(-1)[best], paths[best][:, None]
    return mx.stack(ids), mx.stack(values), mx.stack(chosen)


def _padded(rows: Array, width: int, value: float) -> Array:
    """As many rows as there are beams; the first step has one."""
    missing = width - rows.shape[0]
    return mx.pad(rows, [(0, missing), (0, 0)], constant_values=value) if missing else rows


class DrafterSession:
    """The drafter of one request, beside the target's session, from whose latest pass it goes on.

    It answers nothing (None) after ids whose last one no recent pass of the target has chosen, as
    before the first pass of a generation.

    target: keeps the hidden states of its passes. The drafter's steps are compiled on a GPU.
    """

    def __init__(self, drafter: RecurrentDrafter, target: TargetModelSession) -> None:
        self._drafter, self._target = drafter, target
        self._step = drafter.step if mx.default_device().type == mx.cpu else compiled_step(drafter)
        self.passes = 0

    def search(
        self,
        ids: Sequence[TargetId],
        shape: BeamShape,
        *,
        count: int,
        sampler: Sampling | None = None,
    ) -> Beams | None:
        """Search for what follows `ids`, with one step for each id of a beam.

        count: ids listed after every beam, at least as many as there are beams.
        sampler: predicts the choices of a target that samples (`Sampling.expect`); without one,
        probabilities are the drafter's own.
        """
        if (state := self._begin(ids)) is None:
            return None

        def expect(logits: Array, step: int) -> Array:
            logits = logits.astype(mx.float32)
            if sampler is None:
                return logits - logits.logsumexp(axis=-1, keepdims=True)
            return sampler.expect(logits, [len(ids) + step] * logits.shape[0])

        count = min(max(count, shape.width), self._drafter.config.vocabulary_size)
        found = beam_search(self._step, state, _last(ids), shape, count=count, expect=expect)
        self.passes += shape.length
        mx.eval(*found)  # the one wait of a round's drafting
        return Beams(*(array.tolist() for array in found))

    def draw(
        self, ids: Sequence[TargetId], steps: int, *, sampler: Sampling
    ) -> list[TargetId] | None:
        """Draw a chain of `steps` (at least 1) ids that follow `ids`, with one step each."""
        if (state := self._begin(ids)) is None:
            return None

        def advance(token: Array) -> Array:
            nonlocal state
            state, logits = self._step(cast("DrafterState", state), token)
            return logits.astype(mx.float32)

        self.passes += steps
        drawn = sampler.draw_chain(advance(_last(ids)), advance, steps, after=ids)
        return cast("list[TargetId]", drawn.tolist())

    def _begin(self, ids: Sequence[TargetId]) -> DrafterState | None:
        """The drafter before it reads the last of `ids`; None where the target has no state."""
        hidden = self._target.state_before_last(ids)
        return None if hidden is None else self._drafter.initial_state(hidden)


def compiled_step(drafter: RecurrentDrafter) -> Step:
    """The drafter's step as one compiled function; its shapes are those of two passes at most."""

    @mx.compile
    def step(recurrent: Array, context: Array, ids: Array) -> tuple[Array, Array]:
        state, logits = drafter.step(DrafterState(recurrent, context), ids)
        return state.recurrent, logits

    def with_state(state: DrafterState, ids: Array) -> tuple[DrafterState, Array]:
        recurrent, logits = step(state.recurrent, state.context, ids)
        return DrafterState(recurrent, state.context), logits

    return with_state


def _last(ids: Sequence[TargetId]) -> Array:
    return mx.array([ids[-1]], dtype=mx.uint32)


DEFAULT_SHAPE = BeamShape(width=4, length=4)
"""Beams that are searched where the rows are chosen by their gain."""
