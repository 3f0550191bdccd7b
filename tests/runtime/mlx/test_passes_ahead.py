"""A pass waits for those that other generations began before it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from tokalign.runtime.mlx import passes_ahead
from tokalign.runtime.mlx.passes_ahead import PassesAhead


class Session:
    """Stands for one."""


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers in the arrays that were waited for."""
    seen: list[int] = []

    def evaluate(*arrays: Any) -> None:
        seen.extend(int(array.item()) for array in arrays)

    monkeypatch.setattr(passes_ahead.mx, "eval", evaluate)
    return seen


def test_passes_that_began_before_are_waited_for_once(waited: list[int]) -> None:
    one, two, three, passes = Session(), Session(), Session(), PassesAhead()
    arrays = [mx.array([n]) for n in range(5)]
    passes.begin(one, arrays[0])
    passes.begin(two, arrays[1])
    passes.begin(three, arrays[2])
    passes.begin(one, arrays[3])
    assert passes.wait_for_others(one, arrays[0]) == 0.0, "none began before"
    assert passes.wait_for_others(two, arrays[1]) == 0.0, "the one before was read"
    assert passes.wait_for_others(two, arrays[4]) > 0.0, "it has begun now, after all"
    assert waited == [2, 3]
    assert passes.wait_for_others(three, arrays[2]) == 0.0, "the later one is known to be done"
    assert passes.wait_for_others(one, arrays[3]) == 0.0
    assert waited == [2, 3]


def test_a_session_that_is_gone_is_forgotten(waited: list[int]) -> None:
    one, two, passes = Session(), Session(), PassesAhead()
    passes.begin(one, mx.array([0]))
    del one
    assert passes.wait_for_others(two) == 0.0
    assert waited == []
    for n in range(100):
        passes.begin(two, mx.array([n]))
        passes.wait_for_others(two)
    assert len(passes.passes) == 1
