"""When a generation ends: length, stop ids, stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokalign.errors import UsageError
from tokalign.runtime.context import Context
from tokalign.runtime.events import FinishReason
from tokalign.runtime.text import token_bytes
from tokalign.vocab import TargetId, Vocabulary

UNBOUNDED = 1 << 30
"""More than any context holds."""


@dataclass(frozen=True)
class StopStrings:
    """Texts that end the output, found in its bytes."""

    texts: tuple[bytes, ...]
    vocabulary: Vocabulary[TargetId]

    def first_end(self, emitted: Sequence[TargetId], new: Sequence[TargetId]) -> int | None:
        """How many of `new` there are up to the token that completes a stop string.

        Cost: a few microseconds per new id; only as many bytes are looked at as can matter.
        """
        reach = max(map(len, self.texts))
        # Each id stands for at least one byte, except special tokens, of which there are few.
        tokens = self.vocabulary.tokens
        tail = b"".join([token_bytes(tokens, token) for token in emitted[-2 * reach :]])
        for count, token in enumerate(new, 1):
            tail = tail[-reach:] + token_bytes(tokens, token)
            if any(text in tail for text in self.texts):
                return count
        return None


def stop_strings(texts: Sequence[str], vocabulary: Vocabulary[TargetId]) -> StopStrings | None:
    """None where there are none. Raises: UsageError for an empty one."""
    if not all(texts):
        raise UsageError("a stop string is empty; give at least one character")
    return StopStrings(tuple(text.encode() for text in texts), vocabulary) if texts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one generation.

    max_tokens: output tokens; None for no bound. context_length: prompt and output together.
    stop_ids: ids that end the output; the id itself is emitted, nothing behind it is.
    """

    max_tokens: int | None
    context_length: int = UNBOUNDED
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    stop_strings: StopStrings | None = None

    def room(self, context: Context) -> int:
        """How many more ids may be emitted."""
        room = self.context_length - len(context.ids)
        if self.max_tokens is not None:
            room = min(room, self.max_tokens - context.emitted_count)
        return room

    def cut(
        self, context: Context, ids: tuple[TargetId, ...]
    ) -> tuple[tuple[TargetId, ...], FinishReason | None]:
        """`ids` up to the one that ends the output, and whether one does."""
        ends = [i for i, token in enumerate(ids, 1) if token in self.stop_ids][:1]
        if self.stop_strings is not None:
            end = self.stop_strings.first_end(context.emitted, ids)
            ends += [] if end is None else [end]
        return (ids[: min(ends)], "stop") if ends else (ids, None)
