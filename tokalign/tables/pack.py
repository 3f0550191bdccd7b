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

A number is written as its order of magnitude, one of two symbols per power of two, and the bits
below that. Numbers with the same *context*, which the reader knows before it reads them, have their
symbols next to each other, so that LZMA, which learns as it goes and knows no contexts, codes each
kind with its own frequencies. The bits below are stored as they are.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.bundle import Bundle

Numbers = NDArray[np.int64]

KIND = "pack"

MAX_ORDER = 6
"""The most words of an n-gram."""

MAX_WORDS, MAX_NGRAMS = 1 << 20, 1 << 24
"""The most words and the most n-grams of one order: a reader has to hold them."""

_MAX_TEXT = 1 << 28
_END = "\0"

Filters = list[dict[str, Any]]
_NUMBERS: Filters = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 22}
]
# In a text, a letter depends on the letter before it, and words repeat far away.
_TEXT: Filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]

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
        "words.shared": pack_bytes(bytes(shared), _TEXT),
        "words.text": len(text).to_bytes(4, "little") + pack_bytes(text, _TEXT),
    }


def _unpack_words(bundle: Bundle, size: int) -> list[str]:
    data = bundle.sections["words.text"]
    length = int.from_bytes(data[:4], "little")
    if length > _MAX_TEXT:
        raise ValueError("the text of its words is too long")
    rests = unpack_bytes(data[4:], length, _TEXT).decode().split(_END)
    shared = unpack_bytes(bundle.sections["words.shared"], size, _TEXT)
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


# -- numbers in few bytes --------------------------------------------------------------------------


def pack_bytes(data: bytes, filters: Filters = _NUMBERS) -> bytes:
    """Compress; equal bytes give equal bytes."""
    return lzma.compress(data, lzma.FORMAT_RAW, filters=filters)


def unpack_bytes(data: bytes | memoryview, size: int, filters: Filters = _NUMBERS) -> bytes:
    """What `pack_bytes` was given, which has to have this size. Raises: ValueError."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
    try:
        unpacked = reader.decompress(bytes(data), max_length=size + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"it cannot be decompressed ({error})") from error
    if len(unpacked) != size:
        raise ValueError(f"it has {len(unpacked)} bytes or more, not {size}")
    return unpacked


def pack_numbers(numbers: Numbers, contexts: Numbers) -> tuple[bytes, bytes]:
    """Symbols and bits of numbers from 0 to 2**32 - 2, each with its context from 0 to 65,535."""
    symbols, widths = _symbols(numbers)
    order = _by_context(contexts)
    low = (numbers + 1)[order]
    planes = [
        np.packbits((low[wide] >> bit & 1).astype(np.uint8)).tobytes()
        for bit, wide in _planes(widths[order])
    ]
    return pack_bytes(symbols[order].tobytes()), b"".join(planes)


def unpack_numbers(symbols: bytes | memoryview, bits: memoryview, contexts: Numbers) -> Numbers:
    """The numbers that `pack_numbers` was given, by their contexts. Raises: ValueError."""
    found = np.frombuffer(unpack_bytes(symbols, len(contexts)), dtype=np.uint8).astype(np.int64)
    if len(found) and found.max() > 64:
        raise ValueError("it has symbols of no number")
    widths = np.maximum((found - 1) >> 1, 0)
    tops = np.where(found > 0, 2 + (found - 1 & 1), 1)
    numbers = tops << widths
    at = 0
    for bit, wide in _planes(widths):
        size = -(-len(wide) // 8)
        plane = np.frombuffer(bits[at : at + size], dtype=np.uint8)
        if len(plane) < size:
            raise ValueError("its bits are cut off")
        numbers[wide] |= np.unpackbits(plane, count=len(wide)).astype(np.int64) << bit
        at += size
    restored: Numbers = np.empty_like(numbers)
    restored[_by_context(contexts)] = numbers - 1
    return restored


def bit_lengths(numbers: NDArray[Any]) -> Numbers:
    """How many bits each number below 2**53 has; 0 for 0."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)


def _symbols(numbers: Numbers) -> tuple[NDArray[np.uint8], Numbers]:
    """The symbol of each number, and how many bits are left below it.

    With x one more than the number: 0 for x = 1; for others the two highest bits of x tell, so that
    x = 2 and x = 3 are 1 and 2, and 4 and 5 are both 3 with one bit left.
    """
    raised = numbers + 1
    widths = np.maximum(bit_lengths(raised) - 2, 0)
    symbols = np.where(raised > 1, 2 * widths + 1 + (raised >> widths & 1), 0)
    return symbols.astype(np.uint8), widths


def _by_context(contexts: Numbers) -> Numbers:
    return np.argsort(contexts.astype(np.uint16), kind="stable")


def _planes(widths: Numbers) -> list[tuple[int, Numbers]]:
    """For each bit, the places of the numbers that have it."""
    most = int(widths.max(initial=0))
    return [(bit, np.flatnonzero(widths > bit)) for bit in range(most)]
