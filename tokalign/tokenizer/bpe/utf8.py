"""Bytes that need not be whole characters, as text and back."""

from __future__ import annotations


def as_text(data: bytes | bytearray) -> str:
    """Bytes as text, losslessly; stray bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def incomplete_tail(data: bytes | bytearray) -> int:
    """How many bytes at the end of `data` (0 to 3) are an incomplete character.

    Example: `b"za\\xc5"` -> 1, because 0xC5 begins a two-byte character (`ż` is 0xC5 0xBC).
    """
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0
