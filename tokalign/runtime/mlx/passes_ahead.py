"""Passes that run ahead, of all sessions of a thread, in the order in which they are computed.
Where generations take turns, the wait of one for the passes of others is not its own time."""

from __future__ import annotations

from dataclasses import dataclass
from threading import local
from time import perf_counter
from typing import Any
from weakref import ref

import mlx.core as mx

from tokalign.runtime.rounds import Array


@dataclass(slots=True, eq=False)
class _Pass:
    """A pass that ran ahead: its session, what tells when it is done, and whether that is known."""

    session: ref[Any]
    array: Array
    is_done: bool = False


class PassesAhead(local):
    """The passes that have begun and were not read yet, the oldest first, of each session the
    newest; each thread has its own."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []

    def begin(self, session: object, array: Array) -> None:
        """A pass has begun. array: is computed at its end."""
        self.passes.append(_Pass(ref(session), array))

    def wait_for_others(self, session: object, before: Array | None = None) -> float:
        """Wait for the passes of other sessions; returns the seconds that this took.

        before: an array of `session` that is read next; passes that began after it are not waited
        for. The device computes the others first anyway, so reading it ends no later.
        """
        passes = [pass_ for pass_ in self.passes if pass_.session() is not None]
        here = next((n for n, pass_ in enumerate(passes) if pass_.array is before), len(passes))
        others = [pass_ for pass_ in passes[:here] if pass_.session() is not session]
        own = [pass_ for pass_ in passes if pass_.session() is session][-1:]
        kept = [pass_ for pass_ in own if pass_.array is not before]
        self.passes = [pass_ for pass_ in passes if pass_.session() is not session or pass_ in kept]
        unknown = [pass_ for pass_ in others if not pass_.is_done]
        if not unknown:
            return 0.0
        began = perf_counter()
        mx.eval(*[pass_.array for pass_ in unknown])
        for pass_ in unknown:
            pass_.is_done = True
        return perf_counter() - began


AHEAD = PassesAhead()
