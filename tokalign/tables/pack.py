"""A pack: how often the words of a language follow each other, for no tokenizer in particular.

A dictionary knows what follows a few tokens, which is a fact of the language more than of the
vocabulary. A pack holds that fact: counts of word n-grams, from which `build.compile_pack` makes
the dictionary of any tokenizer. A *word* is what no token reaches out of: letters and digits with
the space before them, or the signs after them.

    "Ala ma kota, a kot"   ->   "\\nAla"  " ma"  " kota"  ","  " a"  " kot"

The first word of a line begins with a line feed instead of a space.

Words are numbered by falling count. N-grams are a tree: the *children* of one are the n-grams that
have one word more. Without its first word, each is an n-gram too, its *suffix*; so the children of
an n-gram are found among those of its suffix, and a child is written as its place among these. The
children of one n-gram stand in the order of falling counts. Counts are rounded to 12 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.bundle import Bundle
from tokalign.tables.packed_numbers import (
    Numbers,
    bit_lengths,
    pack_bytes,
    pack_numbers,
    unpack_bytes,
    unpack_numbers,
)

KIND = "pack"

MAX_ORDER = 6
"""The most words of an n-gram."""

MAX_WORDS, MAX_NGRAMS = 1 << 20, 1 << 24
"""The most words and the most n-grams of one order: a reader has to hold them."""

_MAX_TEXT = 1 << 28
_END = "\0"

COUNTS = np.unique(np.rint(1.12 ** np.arange(300))).astype(np.int64)[:200]
"""The counts that a pack can say, by their *level*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordNgrams:
    """The word n-grams of one order. prefix, suffix: among those of the next lower order.

    last: the number of the last word. levels: of their counts, see `COUNTS`.
    """

    prefix: Numbers
    suffix: Numbers
    last: Numbers
    levels: Numbers

    def __len__(self) -> int:
        return len(self.last)


@dataclass(frozen=True, slots=True)
class Pack:
    """words: by their numbers. orders: word n-grams of 1, 2, ... words."""

    words: Sequence[str]
    orders: Sequence[WordNgrams]

    def to_sections(self) -> dict[str, bytes]:
        alphabetical = sorted(range(len(self.words)), key=self.words.__getitem__)
        levels = self.orders[0].levels[alphabetical]
        sections = _pack_words([self.words[number] for number in alphabetical])
        _put(sections, "words.levels", levels, np.zeros_like(levels))
        for n, (shorter, longer) in enumerate(pairwise(self.orders), start=2):
            first, room = _siblings(shorter)
            counted = np.bincount(longer.prefix, minlength=len(shorter))
            _put(sections, f"{n}.children", counted, _about_children(shorter, room))
            # In the order of their places among the children of the suffix.
            order = np.lexsort((longer.suffix, longer.prefix))
            prefix = longer.prefix[order]
            places = longer.suffix[order] - first[prefix]
            gaps = np.diff(places, prepend=-1) - 1
            starts = np.cumsum(counted) - counted
            begun = starts[counted > 0]
            gaps[begun] = places[begun]
            _put(sections, f"{n}.gaps", gaps, _about_gaps(counted, room))
            ours = longer.levels[order]
            _put(sections, f"{n}.levels", ours, _highest(shorter, prefix, longer.suffix[order]))
        return sections

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Pack:
        """The pack in a bundle, with every number in it checked. Raises: BundleError."""
        size = bundle.number("words", least=1, most=MAX_WORDS)
        orders = bundle.number("max_order", least=1, most=MAX_ORDER)
        try:
            return cls._read(bundle, size, orders)
        except (ValueError, KeyError) as error:
            raise bundle.wrong(f"it is no pack: {error}") from error

    @classmethod
    def _read(cls, bundle: Bundle, size: int, max_order: int) -> Pack:
        words, levels = _read_words(bundle, size)
        alphabetical = np.argsort(-levels, kind="stable")
        none = np.zeros(size, dtype=np.int64)
        orders = [
            WordNgrams(prefix=none, suffix=none, last=np.arange(size), levels=levels[alphabetical])
        ]
        for n in range(2, max_order + 1):
            shorter = orders[-1]
            first, room = _siblings(shorter)
            counted = _get(bundle, f"{n}.children", _about_children(shorter, room), size + 1)
            if counted.sum() > MAX_NGRAMS or np.any(counted > room):
                raise ValueError(f"section {n}.children has more n-grams than there can be")
            prefix = np.repeat(np.arange(len(shorter)), counted)
            gaps = _get(bundle, f"{n}.gaps", _about_gaps(counted, room), size)
            within = np.cumsum(gaps + 1)
            starts = np.cumsum(counted) - counted
            before = np.concatenate([[0], within])[starts]
            places = within - 1 - np.repeat(before, counted)
            if np.any(places >= room[prefix]):
                raise ValueError(f"section {n}.gaps leads to n-grams that there are not")
            suffix = first[prefix] + places
            about = _highest(shorter, prefix, suffix)
            found = _get(bundle, f"{n}.levels", about, len(COUNTS))
            order = np.lexsort((suffix, -found, prefix))
            suffix, last = suffix[order], shorter.last[suffix[order]]
            orders.append(WordNgrams(prefix=prefix, suffix=suffix, last=last, levels=found[order]))
        return cls([words[place] for place in alphabetical], orders)


def word_probabilities(bundle: Bundle, most: int) -> dict[str, float]:
    """The share of each of the `most` most frequent words among all that were counted.

    This reads a small part of a pack. Raises: BundleError.
    """
    try:
        known, levels = _read_words(bundle, bundle.number("words", least=1, most=MAX_WORDS))
    except (ValueError, KeyError) as error:
        raise bundle.wrong(f"it is no pack: {error}") from error
    counts = COUNTS[levels]
    shares = counts / counts.sum()
    return {known[n]: float(shares[n]) for n in np.argsort(-counts, kind="stable")[:most]}


def _read_words(bundle: Bundle, size: int) -> tuple[list[str], Numbers]:
    """All words in alphabetical order, and the levels of their counts."""
    words = _unpack_words(bundle, size)
    return words, _get(bundle, "words.levels", np.zeros(size, dtype=np.int64), len(COUNTS))


def _siblings(shorter: WordNgrams) -> tuple[Numbers, Numbers]:
    """For each n-gram, where the children of its suffix begin, and how many there are.

    The suffix of a single word is the empty n-gram, whose children are all words.
    """
    parents = 1 + max(int(shorter.prefix.max(initial=0)), int(shorter.suffix.max(initial=0)))
    sizes = np.bincount(shorter.prefix, minlength=parents)
    firsts = np.cumsum(sizes) - sizes
    return firsts[shorter.suffix], sizes[shorter.suffix]


def _about_children(shorter: WordNgrams, room: Numbers) -> Numbers:
    """What tells how many children an n-gram has: its count, and how many its suffix has."""
    return shorter.levels * 32 + bit_lengths(room)


def _about_gaps(counted: Numbers, room: Numbers) -> Numbers:
    """What tells how far a child is from the one before: how thickly they lie, its number."""
    counts = counted[counted > 0]
    ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    thick = np.repeat(bit_lengths(room[counted > 0] // counts), counts)
    return thick * 32 + np.minimum(bit_lengths(ranks), 31)


def _highest(shorter: WordNgrams, prefix: Numbers, suffix: Numbers) -> Numbers:
    """The level that an n-gram's count can have at most."""
    return np.minimum(shorter.levels[prefix], shorter.levels[suffix])


def _put(sections: dict[str, bytes], name: str, numbers: Numbers, contexts: Numbers) -> None:
    sections[name], sections[f"{name}.bits"] = pack_numbers(numbers, contexts)


def _get(bundle: Bundle, name: str, contexts: Numbers, limit: int) -> Numbers:
    symbols, bits = bundle.sections[name], memoryview(bundle.sections[f"{name}.bits"])
    numbers = unpack_numbers(symbols, bits, contexts)
    if numbers.max(initial=0) >= limit:
        raise ValueError(f"section {name} has {numbers.max()}, which is not below {limit}")
    return numbers


def _pack_words(words: Sequence[str]) -> dict[str, bytes]:
    """Sorted words: how many characters each has in common with the one before, and the rest."""
    shared, rests, before = bytearray(), list[str](), ""
    for word in words:
        common = 0
        for ours, theirs in zip(word, before, strict=False):
            if ours != theirs or common == 255:
                break
            common += 1
        shared.append(common)
        rests.append(word[common:])
        before = word
    text = _END.join(rests).encode()
    return {
        "words.shared": pack_bytes(bytes(shared), text=True),
        "words.text": len(text).to_bytes(4, "little") + pack_bytes(text, text=True),
    }


def _unpack_words(bundle: Bundle, size: int) -> list[str]:
    data = bundle.sections["words.text"]
    length = int.from_bytes(data[:4], "little")
    if length > _MAX_TEXT:
        raise ValueError("the text of its words is too long")
    rests = unpack_bytes(data[4:], length, text=True).decode().split(_END)
    shared = unpack_bytes(bundle.sections["words.shared"], size, text=True)
    words, before = list[str](), ""
    for common, rest in zip(shared, rests, strict=True):
        before = before[:common] + rest
        words.append(before)
    if not all(words):
        raise ValueError("a word is empty")
    return words


def levels_of(counts: NDArray[np.floating[Any]]) -> Numbers:
    """The level of the count that is closest to each, in proportion."""
    edges = np.sqrt(COUNTS[1:] * COUNTS[:-1].astype(np.float64))
    return np.searchsorted(edges, counts, side="right")
