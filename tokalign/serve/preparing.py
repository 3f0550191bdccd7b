"""The threads that read requests while others are decoded.

A long prompt or a large grammar takes seconds. So there are two lanes, and what may take long does
not keep what is short waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from tokalign.serve.admission import Refusal
from tokalign.serve.beginnings import prepare
from tokalign.serve.models import Loaded
from tokalign.serve.request import Asked
from tokalign.serve.waiting import Waiting

_THREADS = 2
"""In each lane."""

_SHORT = 1 << 16
"""Characters of a prompt that is encoded in some hundredths of a second."""

_Lane = SimpleQueue["tuple[Waiting, Loaded] | None"]


class Preparing:
    """Two lanes of threads. ready: called after each request."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._lanes: tuple[_Lane, _Lane] = (SimpleQueue(), SimpleQueue())
        for lane in self._lanes * _THREADS:
            # A daemon, so that the longest prompt does not keep a server from ending.
            Thread(target=self._serve, args=(lane,), name="preparing", daemon=True).start()

    def submit(self, one: Waiting, loaded: Loaded) -> None:
        """Have a request prepared for the models that are loaded."""
        one.is_submitted = True
        self._lanes[_may_take_long(one.asked)].put((one, loaded))

    def stop(self) -> None:
        """End the threads; nobody waits for them."""
        for lane in self._lanes * _THREADS:
            lane.put(None)

    def _serve(self, lane: _Lane) -> None:
        while self._prepare_next(lane):
            self._ready()

    def _prepare_next(self, lane: _Lane) -> bool:
        """Prepare one request. It is a function of its own, so that no model outlives its use."""
        if (work := lane.get()) is None:
            return False
        one, loaded = work
        try:
            if one.asked.abandoned.is_set():
                raise Refusal(499, "the client has left")
            one.result = prepare(loaded, one.asked)
        except Exception as error:  # it is told to the client, whatever it is
            one.result = error
        except BaseException as error:  # a panic in Rust
            one.result = RuntimeError(f"a library gave up: {type(error).__name__}")
        return True


def _may_take_long(asked: Asked) -> bool:
    size = len(asked.prompt) + len(asked.suffix) + len(asked.prediction or "")
    size += sum(len(str(part)) for part in (*(asked.messages or ()), *asked.tools))
    return size > _SHORT or asked.grammar is not None or asked.tool_choice is not None
