"""Numbers in few bytes, where something already known says how large each is likely to be.

A number is written as its order of magnitude, one of two symbols per power of two, and the bits
below that. Numbers with the same *context*, which the reader knows before it reads them, have their
symbols next to each other, so that LZMA, which learns as it goes and knows no contexts, codes each
kind with its own frequencies. The bits below are stored as they are.
"""

from __future__ import annotations

import lzma
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 22}
]


def pack_bytes(data: bytes, *, text: bool = False) -> bytes:
    """Compress; equal bytes give equal bytes. text: whether each byte depends on the one before."""
    return lzma.compress(data, lzma.FORMAT_RAW, filters=_filters(text))


def unpack_bytes(data: bytes | memoryview, size: int, *, text: bool = False) -> bytes:
    """What `pack_bytes` was given, which has to have this size. Raises: ValueError."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(text))
    try:
        unpacked = reader.decompress(bytes(data), max_length=size + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"it cannot be decompressed ({error})") from error
    if len(unpacked) != size:
        raise ValueError(f"it has {len(unpacked)} bytes or more, not {size}")
    return unpacked


def _filters(text: bool) -> list[dict[str, Any]]:
    # As text: a letter depends on the letter before it, and words repeat far away.
    return [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}] if text else _FILTERS


def pack_numbers(numbers: Numbers, contexts: Numbers) -> tuple[bytes, bytes]:
    """Symbols and bits of numbers from 0 to 2**32 - 2, each with its context from 0 to 65,535."""
    symbols, widths = _symbols(numbers)
    order = _by_context(contexts)
    low = (numbers + 1)[order]
    planes = [
        np.packbits((low[wide] >> bit & 1).astype(np.uint8)).tobytes()
        for bit, wide in _planes(widths[order])
    ]
    return pack_bytes(symbols[order].tobytes()), b"".join(planes)


def unpack_numbers(symbols: bytes | memoryview, bits: memoryview, contexts: Numbers) -> Numbers:
    """The numbers that `pack_numbers` was given, by their contexts. Raises: ValueError."""
    found = np.frombuffer(unpack_bytes(symbols, len(contexts)), dtype=np.uint8).astype(np.int64)
    if len(found) and found.max() > 64:
        raise ValueError("it has symbols of no number")
    widths = np.maximum((found - 1) >> 1, 0)
    tops = np.where(found > 0, 2 + (found - 1 & 1), 1)
    numbers = tops << widths
    at = 0
    for bit, wide in _planes(widths):
        size = -(-len(wide) // 8)
        plane = np.frombuffer(bits[at : at + size], dtype=np.uint8)
        if len(plane) < size:
            raise ValueError("its bits are cut off")
        numbers[wide] |= np.unpackbits(plane, count=len(wide)).astype(np.int64) << bit
        at += size
    restored: Numbers = np.empty_like(numbers)
    restored[_by_context(contexts)] = numbers - 1
    return restored


def bit_lengths(numbers: NDArray[Any]) -> Numbers:
    """How many bits each number below 2**53 has; 0 for 0."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _symbols(numbers: Numbers) -> tuple[NDArray[np.uint8], Numbers]:
    """The symbol of each number, and how many bits are left below it.

    With x one more than the number: 0 for x = 1; for others the two highest bits of x tell, so that
    x = 2 and x = 3 are 1 and 2, and 4 and 5 are both 3 with one bit left.
    """
    raised = numbers + 1
    widths = np.maximum(bit_lengths(raised) - 2, 0)
    symbols = np.where(raised > 1, 2 * widths + 1 + (raised >> widths & 1), 0)
    return symbols.astype(np.uint8), widths


def _by_context(contexts: Numbers) -> Numbers:
    return np.argsort(contexts.astype(np.uint16), kind="stable")


def _planes(widths: Numbers) -> list[tuple[int, Numbers]]:
    """For each bit, the places of the numbers that have it."""
    most = int(widths.max(initial=0))
    return [(bit, np.flatnonzero(widths > bit)) for bit in range(most)]
