"""Passes that run ahead, of all sessions of a thread, in the order in which they are computed.
Where generations take turns, the wait of one for the passes of others is not its own time."""

from __future__ import annotations

from threading import local
from time import perf_counter
from typing import Any
from weakref import ref

import mlx.core as mx

from tokalign.runtime.rounds import Array


class PassesAhead(local):
    """The passes that have begun and were not read yet, the oldest first, of each session the
    newest, each with an array that is computed at its end; each thread has its own."""

    def __init__(self) -> None:
        self.passes: list[tuple[ref[Any], Array]] = []

    def begin(self, session: object, array: Array) -> None:
        """A pass has begun."""
        self.passes.append((ref(session), array))

    def wait_for_others(self, session: object, before: Array | None = None) -> float:
        """Wait for the passes of other sessions; returns the seconds that this took.

        before: an array of `session` that is read next; passes that began after it are not waited
        for. The device computes the others first anyway, so reading it ends no later.
        """
        passes = [(by, array) for by, array in self.passes if by() is not None]
        here = next((n for n, (_, array) in enumerate(passes) if array is before), len(passes))
        others = [array for by, array in passes[:here] if by() is not session]
        own = [array for by, array in passes if by() is session][-1:]
        self.passes = [
            (by, array)
            for by, array in passes
            if by() is not session or (array is own[0] and array is not before)
        ]
        if not others:
            return 0.0
        began = perf_counter()
        mx.eval(*others)
        return perf_counter() - began


AHEAD = PassesAhead()
