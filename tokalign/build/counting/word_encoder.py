"""A shard of a corpus as token ids: every word is encoded once, then looked up.

A *word* begins at each space that comes after something other than white space; a line end is a
word of its own. If no piece of the tokenizer crosses such a cut (`words_stand_alone`), a line is
encoded word by word: 131 MB of Polish are 18 million words, a million of them different. Otherwise
a line is one word.

There is no loop over words. All words of a shard are looked up at once by 64-bit hashes and then
compared with what was found, so a collision costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.pretokenizer import Splitter, has_inner_space
from tokalign.build.counting.batch_bpe import BatchBpe
from tokalign.build.counting.hash_index import ABSENT, MULTIPLIER, Hashes, HashIndex
from tokalign.build.counting.sequence_pool import Ints, Pool, positions
from tokalign.build.counting.windows import IdArray, IdSpace
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Units = NDArray[np.uint16]
"""Text as UTF-16 code units: four of them are compared at once."""

MAX_WORDS = 1 << 20
"""How many words an encoder remembers by default."""

BYTES_PER_WORD = 150
"""The memory that a remembered word takes, ids included."""

_LONGEST = 48  # units; longer words are rare and are not remembered
_NEWLINE, _SPACE = 10, 32
_WHITE = np.array([chr(unit).isspace() for unit in range(1 << 16)])

# Texts before and after a cut: letters, digits, signs, and what pre-tokenizers treat specially.
_ENDS = ("a", "Ż", "7", "1234", ",", "...", "'s", "’", "–", "字", "\u0301", "\u200b", "x_", "=\t)")
_STARTS = (" a", " Ż", " 7", " 1234", " ,", " 's", " –", "  x", " \t", " \u00a0y", " ", "   ", " ▁")


def words_stand_alone(splitter: Splitter) -> bool:
    """Whether no piece has a space after something other than white space, as probing finds.

    True for `WordSplitter` and the GPT family of pre-tokenizers: none of their alternatives has a
    space after another character, and none looks back.
    """
    return all(
        splitter.split(end + start) == splitter.split(end) + splitter.split(start)
        for end in map(str.encode, _ENDS)
        for start in map(str.encode, _STARTS)
    )


def encodes_words(tokenizer: Tokenizer[TargetId]) -> bool:
    """Whether a line's encoding is that of its words, each of which the merges encode."""
    return (
        tokenizer.level is Level.ALIGNED
        and tokenizer.bpe.spells_all
        and words_stand_alone(tokenizer.splitter)
        and not any(map(has_inner_space, tokenizer.vocabulary.tokens))
    )


class WordEncoder:
    """Encodes shards, one after the other, and remembers the words it has met.

    space: how ids are written; its gap stands for a line end.
    max_words: if more are remembered when a shard begins, all are forgotten.
    """

    def __init__(
        self, tokenizer: Tokenizer[TargetId], space: IdSpace, *, max_words: int = MAX_WORDS
    ) -> None:
        self._tokenizer, self._space = tokenizer, space
        self._max_words = max_words
        self._bpe = BatchBpe(tokenizer) if encodes_words(tokenizer) else None
        self._forget()

    def encode(self, lines: Sequence[str]) -> IdArray:
        """The ids that `Tokenizer.encode` gives for each line, each line followed by a gap.

        No line may contain a line feed.
        Cost: 25 ms per MB of Polish for words met before, and 5 us for each new word.
        """
        if len(self._words) > self._max_words:
            self._forget()
        text = "".join([f"{self._tokenizer.prepared(line)}\n" for line in lines])
        units = np.frombuffer(text.encode("utf-16-le"), dtype="<u2")
        starts, lengths = self._cut(units)
        numbers, new = self._words.number(units, starts, lengths)
        self._ids.extend(*self._encode_words(_texts(text, units, starts[new], lengths[new])))
        if (alone := np.flatnonzero(numbers == ABSENT)).size:
            numbers[alone] = len(self._ids) + np.arange(len(alone))
            texts = _texts(text, units, starts[alone], lengths[alone])
            self._ids.extend(*self._encode_long(texts))
        ids = self._ids.concatenate(numbers)
        self._ids.truncate(len(self._words))
        return ids

    def _forget(self) -> None:
        self._words, self._ids = _Words(), Pool(self._space.dtype)
        newline = np.array([_NEWLINE], dtype=np.uint16)
        self._words.number(newline, np.array([0]), np.array([1]))
        self._ids.extend(np.array([self._space.gap]), np.array([1]))

    def _cut(self, units: Units) -> tuple[Ints, Ints]:
        """Where words start and how long they are; line ends are words."""
        cut = units == _NEWLINE
        cut[1:] |= units[:-1] == _NEWLINE
        if self._bpe is not None:
            cut[1:] |= (units[1:] == _SPACE) & ~_WHITE[units[:-1]]
        cut[:1] = True
        starts = np.flatnonzero(cut)
        return starts, np.diff(starts, append=len(units))

    def _encode_words(self, words: list[str]) -> tuple[Ints, Ints]:
        """The ids of short words, one word after the other, and how many ids each has."""
        if self._bpe is None:
            return self._encode_long(words)
        pieces = [self._tokenizer.splitter.split(word.encode()) for word in words]
        ids, lengths = self._bpe.encode([piece.decode() for word in pieces for piece in word])
        ends = np.append(0, np.cumsum(lengths))
        return ids, np.diff(ends[np.cumsum([0, *map(len, pieces)])])

    def _encode_long(self, words: list[str]) -> tuple[Ints, Ints]:
        encoded = self._tokenizer.encode_parts(words)
        return np.array([i for ids in encoded for i in ids], dtype=np.int64), np.array(
            [len(ids) for ids in encoded], dtype=np.int64
        )


def _texts(text: str, units: Units, starts: Ints, lengths: Ints) -> list[str]:
    """The spans of `units` as text."""
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    if len(text) == len(units):  # without surrogate pairs, positions in both are the same
        return [text[start:end] for start, end in spans]
    return [units[start:end].tobytes().decode("utf-16-le") for start, end in spans]


class _Words:
    """Numbers words 0, 1, 2, ... in the order in which they come."""

    def __init__(self) -> None:
        self._index, self._texts = HashIndex(), Pool(np.uint16)

    def __len__(self) -> int:
        return len(self._index)

    def number(self, units: Units, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """The number of each word, and the indices of the new ones in the order of their numbers.

        A word that is too long, or whose hash is that of another word, has the number ABSENT.
        """
        units = np.append(units, np.zeros(3, dtype=np.uint16))
        short = np.flatnonzero(lengths <= _LONGEST)
        starts, lengths, all_words = starts[short], lengths[short], len(lengths)
        hashes = _hash(units, starts, lengths)
        found = self._index.find(hashes)
        missing = np.flatnonzero(found == ABSENT)
        _, first = np.unique(hashes[missing], return_index=True)
        new = np.sort(missing[first])
        if len(new):
            self._index.add(hashes[new])
            self._texts.extend(units[positions(starts[new], lengths[new])], lengths[new])
            found[missing] = self._index.find(hashes[missing])
        found[~self._same(found, units, starts, lengths)] = ABSENT
        numbers = np.full(all_words, ABSENT)
        numbers[short] = found
        return numbers, short[new]

    def _same(self, numbers: Ints, units: Units, starts: Ints, lengths: Ints) -> NDArray[np.bool]:
        """Whether each word equals the word that has its number."""
        there, there_lengths = self._texts.spans(numbers)
        same: NDArray[np.bool] = lengths == there_lengths
        ours, theirs = _quadruples(units), _quadruples(self._texts.flat)
        for rows, mask, offset in _steps(lengths):
            different = (ours[starts[rows] + offset] ^ theirs[there[rows] + offset]) & mask
            same[rows[different != 0]] = False
        return same


def _hash(units: Units, starts: Ints, lengths: Ints) -> Hashes:
    """A 64-bit hash of each span. At least three more units have to follow the last span."""
    hashes = lengths.astype(np.uint64)
    quadruples = _quadruples(units)
    for rows, mask, offset in _steps(lengths):
        mixed = (hashes[rows] ^ (quadruples[starts[rows] + offset] & mask)) * MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> np.uint64(29))
    return hashes * MULTIPLIER


def _quadruples(units: Units) -> NDArray[np.uint64]:
    """The four units from each position on as one number; a view."""
    return np.ndarray(max(len(units) - 3, 0), dtype="<u8", buffer=units, strides=(2,))


def _steps(lengths: Ints) -> Iterator[tuple[Ints, NDArray[np.uint64], int]]:
    """For each group of four units: which spans reach it, a mask of their own units, its offset."""
    rows = np.arange(len(lengths))
    for offset in range(0, int(lengths.max(initial=0)), 4):
        rows = rows[lengths[rows] > offset]
        used = np.minimum(lengths[rows] - offset, 4).astype(np.uint64) * np.uint64(16)
        yield rows, ~np.uint64(0) >> (np.uint64(64) - used), offset
