"""Filling a binary fuse map: find an order in which every key still has a slot of its own.

A slot that only one key uses can be left to that key. Without such keys, other slots have a single
user, and so on. If all keys are taken that way, the slots are set in the reverse order, and setting
a key's own slot last makes its three slots give its value. All keys that can be taken at one time
are taken together, as arrays; none of them uses a slot that another one owns.
Source: the peeling of Graf and Lemire (2022), section 3, in rounds instead of with a queue.
The reader is `tables/binary_fuse.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.binary_fuse import FuseShape, Hashes

Integers = NDArray[np.int64]
Rounds = list[tuple[Integers, Integers]]
"""For each round the keys that it takes, and the slot of its own of each."""

_SEEDS = 64


def peel(places: Integers, slots: int) -> Rounds | None:
    """The rounds in which all keys can be taken, or None if some cannot.

    places: i64[3, keys], a key's three slots, all different.
    Cost: about 1 µs per key, 32 bytes per slot.
    """
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
        one, two, three = filled[places[:, taken]]
        filled[own] ^= one ^ two ^ three ^ values[taken]
    return filled


def find_shape(
    keys: int, hash_keys: Callable[[int], Hashes]
) -> tuple[FuseShape, Hashes, Integers, Rounds]:
    """The shape with the first seed under which all keys find a slot, and their hashes, slots and
    rounds.

    hash_keys: given the hash to start from (`FuseShape.start`), the hashes of all keys.
    Raises: ValueError if no seed will do, which means that two keys are the same.
    """
    for seed in range(_SEEDS):
        shape = FuseShape.holding(keys, seed=seed)
        hashes = hash_keys(shape.start)
        places = shape.places(hashes)
        rounds = peel(places, shape.slots)
        if rounds is not None:
            return shape, hashes, places, rounds
    raise ValueError(f"{keys} keys cannot be placed: some of them are the same")
