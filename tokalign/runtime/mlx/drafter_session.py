"""A recurrent drafter that goes on from what the target has computed last.

It has no cache: a round starts from the target's hidden state in the row that chose the last
committed id, which the target's session has kept. Everything is queued on the device, and the host
waits once for the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol, cast

import mlx.core as mx

from tokalign.runtime.draft.beams import Beams, BeamShape
from tokalign.runtime.draft.drawn_places import Place, Shape
from tokalign.runtime.interfaces import DraftSampler, DrawnDraft, Pending
from tokalign.runtime.mlx.beam_search import Step, search
from tokalign.runtime.mlx.busy import BusyTime, UnderWay
from tokalign.runtime.mlx.recurrent_drafter import DrafterState, RecurrentDrafter
from tokalign.runtime.mlx.session import timed
from tokalign.runtime.proposal import Array
from tokalign.tokenizer.vocabulary import TargetId


class KeepsStates(Protocol):
    """Where a drafter's states come from: a `TargetModelSession`, as a rule."""

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """See `TargetModelSession`."""
        ...


class DrafterSession:
    """The drafter of one request (`interfaces.BeamSession`).

    target: keeps the hidden states of its passes. The drafter's steps are compiled on a GPU.
    """

    def __init__(self, drafter: RecurrentDrafter, target: KeepsStates) -> None:
        self._drafter, self._target = drafter, target
        self._step = drafter.step if mx.default_device().type == mx.cpu else compiled_step(drafter)
        self.busy = BusyTime()
        self.passes = 0

    @property
    def seconds(self) -> float:
        """See `interfaces.BeamSession`."""
        return self.busy.seconds

    @timed
    def search(
        self,
        ids: Sequence[TargetId],
        shape: BeamShape,
        *,
        count: int,
        sampler: DraftSampler | None = None,
    ) -> Pending[Beams | None]:
        """See `interfaces.BeamSession`."""
        state = self._begin(ids)
        if state is None:
            return UnderWay(self.busy, lambda: None)

        def expect(logits: Array, step: int) -> Array:
            logits = logits.astype(mx.float32)
            if sampler is None:
                return logits - logits.logsumexp(axis=-1, keepdims=True)
            return sampler.expect(logits, positions=[len(ids) + step] * logits.shape[0])

        count = min(max(count, shape.width), self._drafter.config.vocabulary_size)
        found = search(self._step, state, _last(ids), shape, count=count, expect=expect)
        self.passes += shape.length
        mx.async_eval(*found)  # type: ignore[no-untyped-call]

        def read() -> Beams:
            mx.eval(*found)  # the one wait of a round's drafting
            return Beams(*(array.tolist() for array in found))

        return UnderWay(self.busy, read)

    @timed
    def draw(
        self, ids: Sequence[TargetId], steps: int, *, sampler: DraftSampler
    ) -> Pending[DrawnDraft | None]:
        """See `interfaces.BeamSession`."""
        state = self._begin(ids)
        if state is None:
            return UnderWay(self.busy, lambda: None)
        history = mx.array(list(ids) if sampler.needs_history else [], dtype=mx.uint32)
        token, drawn, distributions = _last(ids), [], []
        for step in range(steps):
            state, logits = self._step(state, token)
            token, distribution = sampler.draw(
                logits.astype(mx.float32), position=len(ids) + step, ids=history
            )
            if sampler.needs_history:
                history = mx.concatenate([history, token])
            drawn.append(token)
            distributions.append(distribution)
        all_drawn = mx.concatenate(drawn)
        self.passes += steps
        mx.async_eval(all_drawn)  # type: ignore[no-untyped-call]

        def read() -> DrawnDraft:
            return DrawnDraft(cast("list[TargetId]", all_drawn.tolist()), distributions)

        return UnderWay(self.busy, read)

    @timed
    def draw_tree(
        self, ids: Sequence[TargetId], shape: Shape, *, sampler: DraftSampler
    ) -> Pending[Place | None]:
        """See `interfaces.BeamSession`."""
        state = self._begin(ids)
        if state is None:
            return UnderWay(self.busy, lambda: None)
        text = Place(shape)
        levels = list(self._levels(state, text, ids, sampler))
        self.passes += len(levels)
        arrays = [array for level in levels for array in (level.ids, level.scores)]
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

        def read() -> Place:
            mx.eval(*arrays)  # the one wait of a round's drafting
            for level in levels:
                level.settle()
            return text

        return UnderWay(self.busy, read)

    def _levels(
        self, state: DrafterState, text: Place, ids: Sequence[TargetId], sampler: DraftSampler
    ) -> Iterator[_Level]:
        """Draw what follows the text, then what follows those ids, and so on."""
        places, token = [text], _last(ids)
        while places:
            state, logits = self._step(state, token)
            scores, distributions = sampler.draw_several(
                logits.astype(mx.float32), positions=[len(ids) + places[0].depth] * len(places)
            )
            count = max(len(place.shape) for place in places)
            best = mx.argsort(-scores, axis=-1)[:, :count]
            yield _Level(places, best, mx.take_along_axis(scores, best, axis=-1), distributions)
            going = []
            for row, place in enumerate(places):
                place.following = [Place(going_on, (), place.depth + 1) for going_on in place.shape]
                found = enumerate(place.following)
                going += [(one, row, row * count + column) for column, one in found if one.shape]
            if not going:
                return
            places, rows, chosen = map(list, zip(*going, strict=True))
            token = best.reshape(-1)[mx.array(chosen)]
            state = DrafterState(state.recurrent[mx.array(rows)], state.context)

    def _begin(self, ids: Sequence[TargetId]) -> DrafterState | None:
        """The drafter before it reads the last of `ids`; None where the target has no state."""
        hidden = self._target.state_before_last(ids)
        return None if hidden is None else self._drafter.initial_state(hidden)


class _Level(NamedTuple):
    """What was drawn after the places of one depth, lazy.

    ids, scores: [places, most that follow one], the largest score first. distributions:
    f[places, vocabulary] that they were drawn from.
    """

    places: list[Place]
    ids: Array
    scores: Array
    distributions: Array

    def settle(self) -> None:
        """Give the places what follows them; ids that cannot be drawn are left out."""
        for row, (place, ids, scores) in enumerate(
            zip(self.places, self.ids.tolist(), self.scores.tolist(), strict=True)
        ):
            possible = sum(score > -inf for score in scores)
            place.following = place.following[:possible]
            for following, token in zip(place.following, ids, strict=False):
                following.ids = (TargetId(token),)
            place.distribution = self.distributions[row : row + 1]


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
