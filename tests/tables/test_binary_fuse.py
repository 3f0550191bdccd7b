"""A binary fuse map gives every key its value, in the bytes and with the hashes of the format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokalign.tables.binary_fuse import FuseShape, assign, find_shape, fingerprints, mix


def hashes_of(count: int, start: int) -> Any:
    found = np.full(count, start, dtype=np.uint64)
    return mix(mix(found, np.arange(count, dtype=np.uint64)), np.full(count, 3, dtype=np.uint64))


@pytest.mark.parametrize("count", [0, 1, 2, 40, 3000])
def test_every_key_has_its_value(count: int) -> None:
    shape, _, places, rounds = find_shape(count, lambda start: hashes_of(count, start))
    values = np.arange(count) * 7 % 251
    slots = assign(places, rounds, values, shape.slots)
    one, two, three = slots[places]
    assert ((one ^ two ^ three) == values).all()
    assert (places[0] < places[1]).all()
    assert (places[1] < places[2]).all()
    assert places.max(initial=0) < shape.slots


@pytest.mark.parametrize(("keys", "per_key"), [(1_000, 1.8), (10_000, 1.5), (1_000_000, 1.2)])
def test_a_key_takes_few_slots(keys: int, per_key: float) -> None:
    assert keys < FuseShape.holding(keys, seed=0).slots < per_key * keys


def test_hashes_and_places_are_those_of_the_format() -> None:
    """Files that exist are read with them."""
    shape = FuseShape(seed=2, segment_bits=4, segments=9)
    assert shape.slots == 11 * 16
    hashes = hashes_of(3, shape.start)
    assert hashes.tolist() == HASHES
    assert fingerprints(hashes).tolist() == [value >> 56 for value in HASHES]
    expected = [
        [((value >> 42 & 0x3FFF) * 9 >> 14) + row << 4 | value >> shift & 15 for value in HASHES]
        for row, shift in enumerate((0, 14, 28))
    ]
    assert shape.places(hashes).tolist() == expected


def _hash(*ids: int) -> int:
    """The format in plain numbers."""
    word, multiplier = (1 << 64) - 1, 0x9E3779B97F4A7C15
    value = 3 * multiplier & word
    for token in ids:
        value = (value ^ token) * multiplier & word
        value ^= value >> 32
    return value


HASHES = [_hash(i, 3) for i in range(3)]


def test_a_key_that_comes_twice_is_refused() -> None:
    twice = np.zeros(4, dtype=np.uint64)
    with pytest.raises(ValueError, match="some of them are the same"):
        find_shape(4, lambda start: twice + np.uint64(start))
