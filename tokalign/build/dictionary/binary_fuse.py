"""Filling a binary fuse map: find an order in which every key still has a slot of its own.

A slot that only one key uses can be left to that key. Take such keys away, and others have a slot
to themselves; when none is left, the slots are set in reverse, each key's own last. All keys that
can be taken at one time are, as arrays: they cannot share slots that one of them owns.
Source: the peeling of Graf and Lemire (2022), section 3, in rounds instead of with a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.binary_fuse import FuseShape, Hashes

Integers = NDArray[np.int64]
Rounds = list[tuple[Integers, Integers]]

_SEEDS = 64


def peel(places: Integers, slots: int) -> Rounds | None:
    """Rounds of (keys, the slot that each is given), or None where some keys cannot be placed.

    places: i64[3, keys], a key's three slots, all different.
    Cost: about 1 µs per key, 32 bytes per slot.
    """
    keys = places.shape[1]
    users = np.bincount(places.ravel(), minlength=slots)
    # The sum of a slot's keys is its key where there is one.
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
        free = touched[users[touched] == 1]  # some twice: each key is taken once all the same
    return rounds if sum(len(taken) for taken, _ in rounds) == keys else None


def assign(places: Integers, rounds: Rounds, values: NDArray[Any], slots: int) -> Integers:
    """Slots i64 such that the XOR of each key's three slots is its value."""
    filled = np.zeros(slots, dtype=np.int64)
    for taken, own in reversed(rounds):
        one, two, three = filled[places[:, taken]]
        filled[own] ^= one ^ two ^ three ^ values[taken]
    return filled


def find_shape(
    keys: int, hash_keys: Callable[[int], Hashes]
) -> tuple[FuseShape, Hashes, Integers, Rounds]:
    """The first seed under which all keys find a place, with their hashes, slots and order.

    hash_keys: the hash of no ids -> the hashes of all keys.
    Raises: ValueError if two keys are the same.
    """
    for seed in range(_SEEDS):
        shape = FuseShape.holding(keys, seed=seed)
        hashes = hash_keys(shape.start)
        places = shape.places(hashes)
        rounds = peel(places, shape.slots)
        if rounds is not None:
            return shape, hashes, places, rounds
    raise ValueError(f"no way to place {keys} keys: some of them are the same")
