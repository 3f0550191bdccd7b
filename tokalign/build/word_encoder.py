"""A shard of a corpus as token ids: every word is encoded once, then looked up.

A *word* is cut before each space that stands behind something else than white space; a line end is
a word of its own. Where no piece of the tokenizer crosses such a cut (`words_stand_alone`), a line
is encoded word by word, and 131 MB of Polish have a million different words in 18 million.

No loop over words: a word is found by a 64-bit hash in an open-addressing table, all words of a
shard at once, and then compared with what was found there, so that a collision costs time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.pieces import Splitter

Units = NDArray[np.uint16]
"""Text as UTF-16 code units: four of them are compared at once."""

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and lengths."""

MAX_WORDS = 1 << 20
_LONGEST = 48  # units; what is longer is rare and never looked up
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NEWLINE, _SPACE = 10, 32
_WHITE = np.array([chr(unit).isspace() for unit in range(1 << 16)])
_FREE = -1

# What stands before and behind a cut: letters, digits, signs, and what pre-tokenizers treat apart.
_ENDS = ("a", "Ż", "7", "1234", ",", "...", "'s", "’", "–", "字", "\u0301", "\u200b", "x_", "=\t)")
_STARTS = (" a", " Ż", " 7", " 1234", " ,", " 's", " –", "  x", " \t", " \u00a0y", " ", "   ", " ▁")


def words_stand_alone(splitter: Splitter) -> bool:
    """Whether no piece goes on from something else into a space, as far as probing can tell.

    True for `WordSplitter` and the GPT family of pre-tokenizers: none of their alternatives has a
    space behind another character, and none looks back.
    """
    return all(
        splitter.split(end + start) == splitter.split(end) + splitter.split(start)
        for end in _ENDS
        for start in _STARTS
    )


class WordEncoder:
    """Encodes shards, one after the other, with a memory of the words it has met.

    encode_parts: encodes texts as they stand, without a dummy prefix; see `Tokenizer`.
    prefix: what is put before every line (the dummy prefix).
    by_word: whether words may be encoded one by one; otherwise lines are.
    gap: the id that stands for a line end. dtype: that of the ids, u16 or u32.
    max_words: the memory is emptied after a shard that made it larger. 150 bytes per word.
    """

    def __init__(
        self,
        encode_parts: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        *,
        prefix: str,
        by_word: bool,
        gap: int,
        dtype: Any,
        max_words: int = MAX_WORDS,
    ) -> None:
        self._encode_parts, self._prefix, self._by_word = encode_parts, prefix, by_word
        self._gap, self._dtype, self._max_words = gap, dtype, max_words
        self._forget()

    def _forget(self) -> None:
        self._words = _WordTable()
        self._ids = _Pool(self._dtype)

    def encode(self, lines: Sequence[str]) -> NDArray[Any]:
        """The ids of each line, followed by `gap`. No line may hold a line feed.

        Cost: 30 ms per MB of Polish for words met before, 10 us for a new word.
        """
        if len(self._ids) > self._max_words:
            self._forget()
        text = "".join([f"{self._prefix}{line}\n" for line in lines])
        units = np.frombuffer(text.encode("utf-16-le"), dtype="<u2")
        spans = self._cut(units)
        numbers, new = self._words.look_up(units, spans)
        self._ids.extend(self._encode_words(_texts(units, (spans[0][new], spans[1][new]))))
        alone = np.flatnonzero(numbers == _FREE)
        if not len(alone):
            return self._ids.concatenate(numbers)
        extra = self._encode_words(_texts(units, (spans[0][alone], spans[1][alone])))
        known = len(self._ids)
        numbers[alone] = known + np.arange(len(alone))
        self._ids.extend(extra)
        ids = self._ids.concatenate(numbers)
        self._ids.truncate(known)
        return ids

    def _cut(self, units: Units) -> Spans:
        """Where words start and how long they are; line ends are words."""
        ends = units == _NEWLINE
        cut = ends.copy()
        cut[1:] |= ends[:-1]
        if self._by_word:
            cut[1:] |= (units[1:] == _SPACE) & ~_WHITE[units[:-1]]
        if len(cut):
            cut[0] = True
        starts = np.flatnonzero(cut)
        return starts, np.diff(starts, append=len(units))

    def _encode_words(self, words: list[str]) -> list[Sequence[int]]:
        encoded: list[Sequence[int]] = list(self._encode_parts(words))
        return [(self._gap,) if w == "\n" else ids for w, ids in zip(words, encoded, strict=True)]


def _texts(units: Units, spans: Spans) -> list[str]:
    ends = (spans[0] + spans[1]).tolist()
    return [
        units[start:end].tobytes().decode("utf-16-le")
        for start, end in zip(spans[0].tolist(), ends, strict=True)
    ]


class _Pool:
    """Numbered sequences in one growing array, `flat`, with at least four elements to spare."""

    def __init__(self, dtype: Any) -> None:
        self._flat = np.zeros(1 << 12, dtype=dtype)
        self._starts = np.zeros(1 << 10, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def _end(self) -> int:
        return int(self._starts[self._size])

    def extend(self, sequences: Sequence[Sequence[int]]) -> None:
        self.extend_flat(
            np.array([i for ids in sequences for i in ids], dtype=self._flat.dtype),
            np.array([len(ids) for ids in sequences], dtype=np.int64),
        )

    def extend_flat(self, flat: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        end, size = self._end, self._size
        self._flat = _grown(self._flat, end + len(flat) + 4)
        self._starts = _grown(self._starts, size + len(lengths) + 1)
        self._flat[end : end + len(flat)] = flat
        self._starts[size + 1 : size + len(lengths) + 1] = end + np.cumsum(lengths)
        self._size += len(lengths)

    def truncate(self, size: int) -> None:
        self._size = size

    def spans(self, numbers: NDArray[np.int64]) -> Spans:
        starts = self._starts[numbers]
        return starts, self._starts[numbers + 1] - starts

    @property
    def flat(self) -> NDArray[Any]:
        return self._flat

    def concatenate(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """The sequences with these numbers, one behind the other."""
        return self._flat[flat_positions(*self.spans(numbers))]


def flat_positions(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """All positions of all spans, one span after the other."""
    ends = np.cumsum(lengths)
    positions = np.repeat(starts - (ends - lengths), lengths)
    positions += np.arange(len(positions))
    return positions


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, at least `size` long; doubled, so that growing is O(1) per element."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


class _WordTable:
    """word -> number, in the order in which the words came."""

    def __init__(self) -> None:
        self._texts = _Pool(np.uint16)
        self._hashes = np.zeros(1 << 10, dtype=np.uint64)
        self._slots = np.full(1 << 12, _FREE, dtype=np.int32)

    def look_up(self, units: Units, spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of each word, and where in `spans` the words stand that are new.

        A word that is too long, or that collides with another, has the number -1.
        """
        padded = np.concatenate([units, np.zeros(3, dtype=np.uint16)])
        short = np.flatnonzero(spans[1] <= _LONGEST)
        starts, lengths = spans[0][short], spans[1][short]
        hashes = _hash(padded, starts, lengths)
        found = self._find(hashes)
        new = np.zeros(0, dtype=np.int64)
        if (missing := np.flatnonzero(found == _FREE)).size:
            _, first = np.unique(hashes[missing], return_index=True)
            new = np.sort(missing[first])
            self._add(hashes[new], padded[flat_positions(starts[new], lengths[new])], lengths[new])
            found[missing] = self._find(hashes[missing])
        found[~self._same(found, padded, starts, lengths)] = _FREE
        numbers = np.full(len(spans[0]), _FREE, dtype=np.int64)
        numbers[short] = found
        return numbers, short[new]

    def _find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number that belongs to each hash, or -1; linear probing, all at once."""
        slot = self._home(hashes)
        numbers = self._slots[slot].astype(np.int64)
        wrong = np.flatnonzero((numbers != _FREE) & (self._hashes[numbers] != hashes))
        while len(wrong):
            slot[wrong] = (slot[wrong] + 1) % len(self._slots)
            numbers[wrong] = self._slots[slot[wrong]]
            other = self._hashes[numbers[wrong]] != hashes[wrong]
            wrong = wrong[(numbers[wrong] != _FREE) & other]
        return numbers

    def _home(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        bits = len(self._slots).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).astype(np.int64)

    def _add(self, hashes: NDArray[np.uint64], text: Units, lengths: NDArray[np.int64]) -> None:
        before = len(self._texts)
        self._texts.extend_flat(text, lengths)
        after = len(self._texts)
        self._hashes = _grown(self._hashes, after)
        self._hashes[before:after] = hashes
        if 2 * after > len(self._slots):
            self._slots = np.full(1 << (4 * after).bit_length(), _FREE, dtype=np.int32)
            before = 0
        self._place(np.arange(before, after))

    def _place(self, numbers: NDArray[np.int64]) -> None:
        """Put numbers, whose hashes differ, into free slots; of two that want one, one waits."""
        slot = self._home(self._hashes[numbers])
        while len(numbers):
            free = self._slots[slot] == _FREE
            self._slots[slot[free]] = numbers[free]
            waiting = self._slots[slot] != numbers
            numbers, slot = numbers[waiting], (slot[waiting] + 1) % len(self._slots)

    def _same(
        self,
        numbers: NDArray[np.int64],
        units: Units,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> NDArray[np.bool]:
        """Whether each word is the one that has its number."""
        there, there_lengths = self._texts.spans(numbers)
        same: NDArray[np.bool] = lengths == there_lengths
        ours, theirs = _quadruples(units), _quadruples(self._texts.flat)
        for rows, mask, offset in _steps(lengths):
            different = (ours[starts[rows] + offset] ^ theirs[there[rows] + offset]) & mask
            same[rows[different != 0]] = False
        return same


def _hash(
    units: Units, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """A 64-bit hash of each span; `units` has three more behind the last span."""
    hashes = lengths.astype(np.uint64)
    quadruples = _quadruples(units)
    for rows, mask, offset in _steps(lengths):
        mixed = (hashes[rows] ^ (quadruples[starts[rows] + offset] & mask)) * _MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> np.uint64(29))
    return hashes * _MULTIPLIER


def _quadruples(units: Units) -> NDArray[np.uint64]:
    """Four units from each position on, as one number; a view."""
    return np.ndarray(max(len(units) - 3, 0), dtype="<u8", buffer=units, strides=(2,))


def _steps(
    lengths: NDArray[np.int64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], int]]:
    """Quadruple by quadruple: the spans that go on there, what of it is theirs, and where it is."""
    rows = np.arange(len(lengths))
    for offset in range(0, int(lengths.max(initial=0)), 4):
        rows = rows[lengths[rows] > offset]
        used = np.minimum(lengths[rows] - offset, 4).astype(np.uint64) * np.uint64(16)
        yield rows, ~np.uint64(0) >> (np.uint64(64) - used), offset
