"""A hash table for many look-ups at once: open addressing over numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.sequence_pool import Ints, grown

Hashes = NDArray[np.uint64]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplying by it (modulo 2^64) gives different numbers different hashes."""

ABSENT = -1


class HashIndex:
    """Numbers 64-bit hashes 0, 1, 2, ... in the order in which they are added.

    Only the high bits of a hash choose its slot. Cost: 15 ns per look-up, 40 bytes per hash.
    """

    def __init__(self) -> None:
        self._hashes = np.zeros(1 << 10, dtype=np.uint64)
        self._slots = np.full(1 << 12, ABSENT, dtype=np.int32)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, hashes: Hashes) -> Ints:
        """The number of each hash; ABSENT if it has none."""
        slots = self._home(hashes)
        numbers = self._slots[slots].astype(np.int64)
        waiting = np.flatnonzero((numbers != ABSENT) & (self._hashes[numbers] != hashes))
        while len(waiting):
            slots[waiting] = (slots[waiting] + 1) % len(self._slots)
            numbers[waiting] = self._slots[slots[waiting]]
            wrong = self._hashes[numbers[waiting]] != hashes[waiting]
            waiting = waiting[(numbers[waiting] != ABSENT) & wrong]
        return numbers

    def add(self, hashes: Hashes) -> None:
        """Number more hashes. None may be there already, and none twice among the new ones."""
        before, after = self._size, self._size + len(hashes)
        self._hashes = grown(self._hashes, after)
        self._hashes[before:after] = hashes
        self._size = after
        if 2 * after > len(self._slots):
            self._slots = np.full(1 << (4 * after).bit_length(), ABSENT, dtype=np.int32)
            before = 0
        self._place(np.arange(before, after))

    def _place(self, numbers: Ints) -> None:
        """Put numbers into free slots. Of two that want the same slot, one tries the next slot."""
        slots = self._home(self._hashes[numbers])
        while len(numbers):
            free = self._slots[slots] == ABSENT
            self._slots[slots[free]] = numbers[free]
            waiting = self._slots[slots] != numbers
            numbers, slots = numbers[waiting], (slots[waiting] + 1) % len(self._slots)

    def _home(self, hashes: Hashes) -> Ints:
        bits = len(self._slots).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).astype(np.int64)
