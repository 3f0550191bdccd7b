"""Limits of tokenizer files, several times what the largest need, and checks of values in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokalign.errors import VocabularyError

MAX_IDS = 1 << 21

MAX_TOKEN_BYTES = 1024

MAX_FILE_BYTES = 128 << 20

MAX_PATTERN = 8192

AGAIN = "download the file again"
TRY_ANOTHER = f"{AGAIN}, or use the one that the model's authors published"


def checked_id(value: Any, what: str) -> int:
    """An id as a file gives it; `what` it belongs to. Raises: VocabularyError if it is none."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_IDS:
        return value
    raise VocabularyError(
        f"gives {shortened(what)} the id {shortened(value)}, where an integer from 0 to "
        f"{MAX_IDS - 1:,} was expected; {TRY_ANOTHER}"
    )


def checked_ids(ids: Mapping[Any, Any]) -> None:
    """Raises: VocabularyError unless every token has an id of its own. Cost: 40 ns a token."""
    values = ids.values()
    if set(map(type, values)) != {int} or min(values) < 0 or max(values) >= MAX_IDS:
        for token, value in ids.items():
            checked_id(value, f"the token {shortened(token, 30)}")
    if len(set(values)) < len(ids):
        seen: set[int] = set()
        twice = next(i for i in values if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise VocabularyError(f"gives the id {twice} to two tokens; {TRY_ANOTHER}")


def flag(holder: Any, key: str, *, default: bool) -> bool:
    """A switch of a file. Raises: VocabularyError for what is neither true nor false."""
    value = holder.get(key)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise VocabularyError(
        f"has {shortened(value)} for {key}, where true or false was expected; {TRY_ANOTHER}"
    )


def checked_pattern(pattern: Any) -> str:
    """The expression of a pre-tokenizer. Raises: VocabularyError for what is none."""
    if isinstance(pattern, str) and 0 < len(pattern) <= MAX_PATTERN:
        return pattern
    raise VocabularyError(
        f"pre-tokenizes with {shortened(pattern)}, where a regular expression of at most "
        f"{MAX_PATTERN:,} characters was expected; {TRY_ANOTHER}"
    )


def check_lengths(tokens: Sequence[bytes]) -> None:
    """Refuse (VocabularyError) a token that is too long: making it takes time by its square."""
    longest = max(map(len, tokens), default=0)
    if longest > MAX_TOKEN_BYTES:
        raise VocabularyError(
            f"has a token of {longest:,} bytes, where at most {MAX_TOKEN_BYTES:,} were expected; "
            f"{TRY_ANOTHER}"
        )


def shortened(value: Any, limit: int = 60) -> str:
    """A value of a file in one short line that is safe to print."""
    spelled = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return spelled if len(spelled) <= limit else spelled[: limit - 1] + "…"
