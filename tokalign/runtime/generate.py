"""Events and text together: one piece per token, for whoever shows or collects them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tokalign.runtime.events import Emitted, Event
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.text import TextStream
from tokalign.vocab import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One output token.

    text: what can be printed now that this token is known, see `TextStream.push`.
    source: the drafter that proposed the token, or "target". logprobs: f[vocabulary], lazy.
    """

    token: TargetId
    text: str
    source: str
    from_draft: bool
    logprobs: Any = None


def stream_pieces(
    events: Iterable[Event], text: TextStream, statistics: Statistics
) -> Iterator[Piece]:
    """Fold a generation's events into pieces; `statistics` sees every event first.

    When the events end, `text.finish()` holds what no token completed.
    """
    for event in events:
        statistics.observe(event)
        if isinstance(event, Emitted):
            yield from _pieces_of(event, text)


def _pieces_of(event: Emitted, text: TextStream) -> Iterator[Piece]:
    for index, (token, source) in enumerate(zip(event.ids, event.sources, strict=True)):
        yield Piece(
            token=token,
            text=text.push(token),
            source=source,
            from_draft=index < event.accepted,
            logprobs=None if event.logprobs is None else event.logprobs[index],
        )
