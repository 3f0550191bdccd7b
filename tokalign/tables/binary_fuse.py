"""Where a binary fuse map keeps a key: in three slots of three neighbouring segments.

A map has planes of the same shape, such as fingerprints and values. In each plane a key's value is
the XOR of its three slots. Keys themselves are not stored, so a key that was never added reads as
noise; its fingerprint of 8 bits shows that, except once in 256. A key takes 9/8 slots.
Keys are sequences of ids. They are hashed id by id, from the last one of the text to the first, so
that one pass over a text hashes all of its suffixes.
Source: Graf and Lemire, "Binary fuse filters" (2022), used as a map as in Chazelle et al., "The
Bloomier filter" (2004). `build/dictionary/binary_fuse.py` fills the slots; `BackoffTable` and
`BatchLookup` read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio, odd: Fibonacci hashing."""

WORD = (1 << 64) - 1

OFFSET_SHIFTS = (0, 14, 28)
"""Where in a hash the bits begin that place the key's slots within its three segments."""

SEGMENT_SHIFT, SEGMENT_WIDTH = 42, 14
FINGERPRINT_SHIFT = 56

SLOTS_PER_KEY = 1.125

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseShape:
    """A map's seed and size: a key's first slot is in one of `segments` of 2^segment_bits slots."""

    seed: int
    segment_bits: int
    segments: int

    @property
    def start(self) -> int:
        """The hash of the empty key. It is a large number, so that no id cancels it."""
        return (self.seed + 1) * MULTIPLIER & WORD

    @property
    def slots(self) -> int:
        """The number of slots in each plane."""
        return (self.segments + 2) << self.segment_bits

    @classmethod
    def holding(cls, keys: int, *, seed: int) -> FuseShape:
        """The shape for a number of keys. Small maps need more slots per key than large ones."""
        bits = min(18, int(log(max(keys, 2)) / log(3.33) + 2.25))
        wanted = max(SLOTS_PER_KEY, 0.875 + 0.25 * log(10**6) / log(max(keys, 3))) * keys
        return cls(seed=seed, segment_bits=bits, segments=max(1, ceil(wanted / (1 << bits)) - 2))

    def places(self, hashes: Hashes) -> NDArray[np.int64]:
        """The three slots of each key, i64[3, keys], for hashes in any number of dimensions."""
        width = (1 << SEGMENT_WIDTH) - 1
        first = (hashes >> np.uint64(SEGMENT_SHIFT) & np.uint64(width)) * np.uint64(self.segments)
        segment = first >> np.uint64(SEGMENT_WIDTH)
        mask = np.uint64((1 << self.segment_bits) - 1)
        rows = [
            ((segment + np.uint64(row)) << np.uint64(self.segment_bits))
            + (hashes >> np.uint64(shift) & mask)
            for row, shift in enumerate(OFFSET_SHIFTS)
        ]
        return np.stack(rows).astype(np.int64)


def mix(hashes: Hashes, ids: NDArray[np.uint64]) -> Hashes:
    """The hashes of keys after one more id each; `FuseShape.start` is that of the empty key."""
    mixed = (hashes ^ ids) * np.uint64(MULTIPLIER)
    return mixed ^ mixed >> np.uint64(32)


def fingerprints(hashes: Hashes) -> NDArray[np.uint8]:
    """The fingerprints of keys, u8[keys]."""
    return (hashes >> np.uint64(FINGERPRINT_SHIFT)).astype(np.uint8)
