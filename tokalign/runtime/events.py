"""The events of the decode loop. Command line, statistics, API and tests fold over this stream.

A stream is `Started Round* Finished`. It may end early when its consumer closes it or is
interrupted, so a fold has to be right after every event.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tokalign.runtime.rounds import FinishReason, Round


class Started(NamedTuple):
    """The first round is about to begin."""

    prompt_tokens: int


class Finished(NamedTuple):
    """The generation came to its own end."""

    reason: FinishReason


Event: TypeAlias = Started | Round | Finished
