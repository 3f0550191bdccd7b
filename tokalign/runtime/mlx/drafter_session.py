"""A recurrent drafter that goes on from what the target has computed last.

It has no cache: a round starts from the target's hidden state in the row that chose the last
committed id, which the target's session has kept. Every step of its beam search is one pass of the
drafter over its beams, and which beams go on is decided on the device, too. So the host queues the
whole search and waits once for its result.
Source: ReDrafter (Cheng et al., 2024), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

import mlx.core as mx

from tokalign.runtime.draft.beams import Beams, BeamShape
from tokalign.runtime.mlx.recurrent_drafter import DrafterState, RecurrentDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import BusyTime, UnderWay, timed, top_k
from tokalign.runtime.rounds import Array
from tokalign.tokenizer.vocabulary import TargetId

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

    state: before the ids `last` i[1] are read. count: ids listed after every beam, at least the
    width, so that the best continuations are among them; the vocabulary has as many. expect: turns
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


class KeepsStates(Protocol):
    """Where a drafter's states come from: a `TargetModelSession`, as a rule."""

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None: ...


class DrafterSession:
    """The drafter of one request, beside the target's session, from whose latest pass it goes on.

    It answers nothing (None) after ids whose last one no recent pass of the target has chosen, as
    before the first pass of a generation.

    target: keeps the hidden states of its passes. The drafter's steps are compiled on a GPU.
    """

    def __init__(self, drafter: RecurrentDrafter, target: KeepsStates) -> None:
        self._drafter, self._target = drafter, target
        self._step = drafter.step if mx.default_device().type == mx.cpu else compiled_step(drafter)
        self.busy = BusyTime()
        self.passes = 0

    @property
    def seconds(self) -> float:
        """Time spent in steps, each search counted from its start until it is read."""
        return self.busy.seconds

    @timed
    def search(
        self,
        ids: Sequence[TargetId],
        shape: BeamShape,
        *,
        count: int,
        sampler: Sampling | None = None,
    ) -> UnderWay[Beams | None]:
        """Search for what follows `ids`, with one step for each id of a beam.

        count: ids listed after every beam, at least as many as there are beams.
        sampler: predicts the choices of a target that samples (`Sampling.expect`); without one,
        probabilities are the drafter's own.
        """
        state = self._begin(ids)
        if state is None:
            return UnderWay(self.busy, lambda: None)

        def expect(logits: Array, step: int) -> Array:
            logits = logits.astype(mx.float32)
            if sampler is None:
                return logits - logits.logsumexp(axis=-1, keepdims=True)
            return sampler.expect(logits, positions=[len(ids) + step] * logits.shape[0])

        count = min(max(count, shape.width), self._drafter.config.vocabulary_size)
        found = beam_search(self._step, state, _last(ids), shape, count=count, expect=expect)
        self.passes += shape.length
        mx.async_eval(*found)  # type: ignore[no-untyped-call]

        def read() -> Beams:
            mx.eval(*found)  # the one wait of a round's drafting
            return Beams(*(array.tolist() for array in found))

        return UnderWay(self.busy, read)

    @timed
    def draw(
        self, ids: Sequence[TargetId], steps: int, *, sampler: Sampling
    ) -> UnderWay[list[TargetId] | None]:
        """Draw a chain of `steps` (at least 1) ids that follow `ids`, with one step each."""
        state = self._begin(ids)
        if state is None:
            return UnderWay(self.busy, lambda: None)
        history = mx.array(list(ids) if sampler.needs_history else [], dtype=mx.uint32)
        token, drawn = _last(ids), []
        for step in range(steps):
            state, logits = self._step(state, token)
            token = sampler.draw(logits.astype(mx.float32), position=len(ids) + step, ids=history)
            if sampler.needs_history:
                history = mx.concatenate([history, token])
            drawn.append(token)
        all_drawn = mx.concatenate(drawn)
        self.passes += steps
        mx.async_eval(all_drawn)  # type: ignore[no-untyped-call]

        return UnderWay(self.busy, lambda: cast("list[TargetId]", all_drawn.tolist()))

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
