"""A binary fuse map: a key's value in three slots of three neighbouring segments.

A map has planes of the same shape, such as fingerprints and values. In each plane a key's value is
the XOR of its three slots. Keys themselves are not stored, so a key that was never added reads as
noise; its fingerprint of 8 bits shows that, except once in 256. A key takes 9/8 slots.
Keys are sequences of ids, hashed from the last id of the text to the first, so that one pass hashes
all suffixes of a text.

To fill a map, slots that only one key uses are left to that key. Without such keys, other slots
have a single user, and so on. If all keys are taken that way, slots are set in the reverse order:
setting a key's own slot last makes its three slots give its value. All keys that can be taken at
one time are taken together, as arrays; none of them uses a slot that another one owns.
Source: Graf and Lemire, "Binary fuse filters" (2022), used as a map as in Chazelle et al., "The
Bloomier filter" (2004), and peeled (section 3) in rounds instead of with a queue.
"""

from __future__ import annotations

from collections.abc import Callable
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
FINGERPRINT_SHIFT, FINGERPRINT_WIDTH = 56, 8

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


Integers = NDArray[np.int64]
Rounds = list[tuple[Integers, Integers]]
"""For each round the keys that it takes, and the slot of its own of each."""

_SEEDS = 64


def peel(places: Integers, slots: int) -> Rounds | None:
    """The rounds in which all keys can be taken, or None if some cannot. places: i64[3, keys].
    Cost: about 1 µs per key, 32 bytes per slot."""
    keys = places.shape[1]
    users = np.bincount(places.ravel(), minlength=slots)
    # Where a slot has one key only, the sum of its keys is that key.
    sums = np.zeros(slots, dtype=np.int64)
    for row in places:
        np.add.at(sums, row, np.arange(keys))
    rounds: Rounds = []
    free = np.flatnonzero(users == 1)
    while len(free):
        taken, first = np.unique(sums[free], return_index=True)
        rounds.append((taken, free[first]))
        touched = places[:, taken]
        for row in touched:
            np.subtract.at(users, row, 1)
            np.subtract.at(sums, row, taken)
        free = touched[users[touched] == 1]  # `np.unique` above drops keys that come twice
    return rounds if sum(len(taken) for taken, _ in rounds) == keys else None


def assign(places: Integers, rounds: Rounds, values: NDArray[np.integer], slots: int) -> Integers:
    """Slots i64 such that the XOR of each key's three slots is its value."""
    filled = np.zeros(slots, dtype=np.int64)
    for taken, own in reversed(rounds):
        first, second, third = filled[places[:, taken]]
        filled[own] ^= first ^ second ^ third ^ values[taken]
    return filled


def find_shape(
    keys: int, hash_keys: Callable[[int], Hashes]
) -> tuple[FuseShape, Hashes, Integers, Rounds]:
    """The shape with the first seed that works, the keys' hashes, slots and rounds. hash_keys:
    gives the hashes, from `FuseShape.start` on. Raises: ValueError if two keys are equal."""
    for seed in range(_SEEDS):
        shape = FuseShape.holding(keys, seed=seed)
        hashes = hash_keys(shape.start)
        places = shape.places(hashes)
        rounds = peel(places, shape.slots)
        if rounds is not None:
            return shape, hashes, places, rounds
    raise ValueError(f"{keys} keys cannot be placed: some of them are the same")
