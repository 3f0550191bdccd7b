"""The target's top-k logits after short runs of ids, as a table.

A key is one, two or three ids in one number. A row belongs to a key and has the most probable next
ids with their log-odds in steps of 1/16. The logit store (`runtime/draft/lookup.py`) has such rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.bundle import Bundle, Section, array_bytes

KIND = "logits"

KEPT = 8
"""Ids kept of each row of a table. The store keeps more, as it costs no file."""

MOST_ROWS = 1 << 16
"""Rows of a table, 3.1 MB: about a fifth of them lose their slot of the store to later ones."""

LONGEST_KEY = 3
"""Ids in the longest key."""

ID_BITS = 20
"""Bits of an id in a key; more than any vocabulary needs."""

_STEP = 1 / 16  # log-odds are multiples of this, from -8 up
_SUREST = 1 - 2.0**-16  # its log-odds are beyond the largest byte

LOG_ODDS = tuple([(code - 128) * _STEP for code in range(256)])
"""The log-odds that a byte stands for."""


def keys_of(tails: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For each length the keys of texts that end so, the length in their two lowest bits:
    u64[LONGEST_KEY, tails]. tails: each text's last `LONGEST_KEY` ids in one number, the last one
    lowest."""
    two = np.uint64(2)
    return np.stack(
        [
            (tails & np.uint64((1 << length * ID_BITS) - 1)) << two | np.uint64(length)
            for length in range(1, LONGEST_KEY + 1)
        ]
    )


def codes_of(logprobs: NDArray[Any]) -> NDArray[np.uint8]:
    """Log-odds of probabilities as bytes; -inf is 0."""
    sure = np.minimum(np.exp(logprobs), _SUREST)
    codes = np.rint((logprobs - np.log1p(-sure)) / _STEP) + 128
    return np.asarray(np.minimum(np.maximum(codes, 0), 255), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class LogitRows:
    """keys: u64[rows]. ids: u32[rows, kept], the most probable first. codes: u8[rows, kept]."""

    keys: NDArray[np.uint64]
    ids: NDArray[np.uint32]
    codes: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.keys)

    def within(self, size: int) -> LogitRows:
        """The same for a target of `size` ids; of those that it lacks, nothing is likely."""
        tails = self.keys >> np.uint64(2)
        known = np.ones(len(self), dtype=np.bool_)
        for place in range(LONGEST_KEY):
            known &= _id_at(tails, place) < size
        keys, ids, codes = self.keys[known], self.ids[known], self.codes[known]
        lacks = ids >= size
        order = np.argsort(lacks, axis=1, kind="stable")
        ids, codes = np.where(lacks, 0, ids), np.where(lacks, 0, codes)
        rows = np.arange(len(keys))[:, None]
        return LogitRows(keys, ids[rows, order], codes[rows, order])

    @classmethod
    def most_frequent(
        cls,
        texts: NDArray[np.uint64],
        ids: NDArray[np.uint64],
        probabilities: NDArray[Any],
        most: int,
        *,
        vocabulary_size: int,
    ) -> Self:
        """The rows of the `most` most frequent keys of some texts, averaged, the rarest first.

        A store keeps the row that is written last, so frequent rows stay.
        texts: u64[texts, n]. ids: u64[texts, n, KEPT], the likeliest ones after each of their ids,
        and their probabilities. vocabulary_size: ids from here on, with which models pad their
        vocabularies, are left out.
        """
        padded = np.pad(texts, ((0, 0), (LONGEST_KEY - 1, 0)))
        tails = sum(
            padded[:, LONGEST_KEY - 1 - place : padded.shape[1] - place]
            << np.uint64(place * ID_BITS)
            for place in range(LONGEST_KEY)
        )
        keys = keys_of(np.asarray(tails).reshape(-1)).reshape(-1)
        different, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
        kept = np.sort(np.argsort(-counts, kind="stable")[:most])
        place_of = np.full(len(different), -1)
        place_of[kept] = np.arange(len(kept))
        rows = np.repeat(place_of[number], ids.shape[-1])
        found = np.tile(ids.reshape(-1), LONGEST_KEY)
        known = (rows >= 0) & (found < vocabulary_size)
        values = np.tile(probabilities.reshape(-1), LONGEST_KEY)[known]
        best, sums = _likeliest(rows[known], found[known], values, len(kept))
        with np.errstate(divide="ignore"):
            codes = codes_of(np.log(sums / counts[kept][:, None]))
        order = np.argsort(counts[kept], kind="stable")
        return cls(different[kept][order], best[order], codes[order])

    def to_sections(self) -> dict[str, Section]:
        return {
            f"{KIND}.keys": array_bytes(self.keys),
            f"{KIND}.ids": array_bytes(self.ids),
            f"{KIND}.codes": array_bytes(self.codes),
        }

    @classmethod
    def from_bundle(cls, bundle: Bundle, vocabulary_size: int | None = None) -> Self:
        """The table in a bundle, every id of which is checked. vocabulary_size: of the tokenizer in
        use, where it is known. Raises: BundleError."""
        size = bundle.vocabulary_size(vocabulary_size)
        keys = bundle.array(f"{KIND}.keys", "<u8")
        ids = bundle.array(f"{KIND}.ids", "<u4")
        kept = max(1, len(ids) // max(1, len(keys)))
        if len(ids) != kept * len(keys):
            raise bundle.wrong(f"the section {KIND}.ids has {len(ids)} ids for {len(keys)} keys")
        codes = bundle.array(f"{KIND}.codes", "u1", length=len(ids))
        _check_keys(bundle, keys, size)
        bundle.check_ids(ids, size, f"{KIND}.ids")
        return cls(keys, ids.reshape(-1, kept), codes.reshape(-1, kept))


def _check_keys(bundle: Bundle, keys: NDArray[np.uint64], vocabulary_size: int) -> None:
    """Raises: BundleError for keys that `keys_of` does not make, or one twice."""
    lengths, tails = keys & np.uint64(3), keys >> np.uint64(2)
    if not lengths.all() or (tails >> lengths * np.uint64(ID_BITS)).any():
        raise bundle.wrong(f"the section {KIND}.keys has a key of no ids, or of too many")
    if len(np.unique(keys)) != len(keys):
        raise bundle.wrong(f"the section {KIND}.keys has a key twice")
    for place in range(LONGEST_KEY):
        bundle.check_ids(_id_at(tails, place), vocabulary_size, f"{KIND}.keys")


def _id_at(tails: NDArray[np.uint64], place: int) -> NDArray[np.uint64]:
    """The last but `place` id of each tail; 0 where a key is shorter."""
    return tails >> np.uint64(place * ID_BITS) & np.uint64((1 << ID_BITS) - 1)


def _likeliest(
    rows: NDArray[Any], ids: NDArray[np.uint64], probabilities: NDArray[Any], count: int
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """For each of `count` rows the `KEPT` ids with the largest sums, and these; 0 for no more."""
    pairs, number = np.unique(rows.astype(np.uint64) << np.uint64(32) | ids, return_inverse=True)
    sums = np.bincount(number, weights=probabilities, minlength=len(pairs))
    row = (pairs >> np.uint64(32)).astype(np.int64)
    order = np.lexsort((-sums, row))
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    best = rank < KEPT
    top_ids, top_sums = np.zeros((count, KEPT), np.uint32), np.zeros((count, KEPT))
    top_ids[row[best], rank[best]] = (pairs[order] & np.uint64(0xFFFFFFFF))[best]
    top_sums[row[best], rank[best]] = sums[order][best]
    return top_ids, top_sums


def joined(tables: Sequence[LogitRows]) -> LogitRows:
    """The rows of several tables, one table after the other, as far as all of them keep ids."""
    kept = min(table.ids.shape[1] for table in tables)
    return LogitRows(
        np.concatenate([table.keys for table in tables]),
        np.concatenate([table.ids[:, :kept] for table in tables]),
        np.concatenate([table.codes[:, :kept] for table in tables]),
    )
