"""The state of `mx.random` after a call: where mlx-lm leaves it without drafts.

mlx-lm draws one id more than it gives, as its pipeline is one pass ahead. Here a round may have
drawn several ids that the caller never took, or none ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tokalign.runtime.interfaces import Sampler
from tokalign.runtime.mlx.sampling import CallableSampler
from tokalign.runtime.proposal import Array


class TracedSampler:
    """A sampler as mlx-lm knows it, and the state of `mx.random` after each time it was asked."""

    def __init__(self, sampler: Callable[[Array], Array]) -> None:
        self._sampler = sampler
        self._states: list[Array] = []
        self._latest: Array = None

    def __call__(self, logprobs: Array) -> Array:
        """The sampler's choice."""
        chosen = self._sampler(logprobs)
        self._latest = logprobs
        self._states.append(_state())
        return chosen

    def leave_after(self, count: int) -> None:
        """Leave the state as the `count`th draw left it, after one more draw if there were fewer.

        Nothing is done if nothing was drawn, or if somebody else has drawn since.
        """
        states = self._states
        if not states or _state().tolist() != states[-1].tolist():
            return
        if len(states) < count:
            self(self._latest)
        elif len(states) > count:
            high, low = states[count - 1].tolist()
            mx.random.seed(high << 32 | low)  # which sets the state to these two numbers


def leave_random_state(chooser: Sampler, given: int) -> None:
    """Leave the state where mlx-lm leaves it once its caller has taken so many ids."""
    sampler = chooser.sampler if isinstance(chooser, CallableSampler) else None
    if isinstance(sampler, TracedSampler):
        sampler.leave_after(given + 1)


def _state() -> Array:
    state: Any = mx.random.state
    return state[0]
