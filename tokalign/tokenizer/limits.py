"""Limits of tokenizer files, several times what the largest need, and checks of values in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from tokalign.errors import VocabularyError

MAX_IDS = 1 << 21

MAX_TOKEN_BYTES = 1024

MAX_FILE_BYTES = 128 << 20

AGAIN = "download the file again"
TRY_ANOTHER = f"{AGAIN}, or use the one that the model's authors published"


TokenId = Annotated[int, Meta(ge=0, lt=MAX_IDS)]
"""An id as a file gives it."""

Pattern = Annotated[str, Meta(min_length=1, max_length=8192)]
"""The expression of a pre-tokenizer."""


def check_ids(ids: Mapping[Any, int]) -> None:
    """Raises: VocabularyError unless every token has an id of its own. Cost: 40 ns a token."""
    values = ids.values()
    if min(values) < 0 or max(values) >= MAX_IDS:
        wrong = next(token for token in ids if not 0 <= ids[token] < MAX_IDS)
        raise VocabularyError(
            f"has the id {shortened(ids[wrong])} for the token {shortened(wrong)}, where 0 to "
            f"{MAX_IDS - 1:,} were expected; {TRY_ANOTHER}"
        )
    if len(set(values)) < len(ids):
        [(twice, _)] = Counter(values).most_common(1)
        raise VocabularyError(f"gives the id {twice} to two tokens; {TRY_ANOTHER}")


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
