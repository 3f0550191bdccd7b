"""A pack: counts of the word n-grams of a language, for no tokenizer in particular.

`build.compile_pack` makes the dictionary of any tokenizer from it. A *word* is what no token
reaches out of: letters and digits with the space or the one sign before them, several signs, or a
line end with the signs before it and the indentation after it, less the last space.

    "Ala ma kota, a kot"        ->   "\\nAla"  " ma"  " kota"  ","  " a"  " kot"
    "if (x):\\n    f(a.b)"      ->   "\\nif"  " ("  "x"  "):\\n   "  " f"  "(a"  ".b"  ")"

The first word of a text begins with a line feed instead of a space.

Words are numbered by falling count. N-grams are a tree: the *children* of one are the n-grams that
have one word more. Without its first word, each is an n-gram too, its *suffix*; so the children of
an n-gram are found among those of its suffix, and a child is written as its place among these. The
children of one n-gram stand in the order of falling counts. Counts are rounded to 12 %.

All of this lies in plain columns, each compressed by xz.
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

MAX_WORDS, MAX_NGRAMS = 1 << 20, 1 << 24
"""The most words, and the most n-grams of all orders: a reader has to hold them."""

LONGEST_WORD = 64
"""Characters of a word; longer ones are addresses and the like. One takes 200 bytes to encode."""

_MAX_TEXT = 1 << 28
_XZ_MEMORY = 1 << 27  # of the strongest preset's decoder, and more
_END = "\0"
_WIDTHS = 1, 2, 4
_PRESET = 9 | lzma.PRESET_EXTREME
# In a text, a letter depends on the letter before it; in a column, nothing does.
_NUMBERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": _PRESET, "lc": 0, "pb": 0}]
_TEXT: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": _PRESET}]

COUNTS = np.unique(np.rint(1.12 ** np.arange(300))).astype(np.int64)[:200]
"""The counts that a pack can say, by their *level*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordNgrams:
    """The word n-grams of one order. prefix, suffix: among those of the next lower order. last: the
    number of the last word. levels: of their counts, see `COUNTS`."""

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
        text = _END.join([self.words[number] for number in alphabetical]).encode()
        sections = {
            "words.text": lzma.compress(text, filters=_TEXT),
            "words.levels": _column(self.orders[0].levels[alphabetical]),
        }
        for n, (shorter, longer) in enumerate(pairwise(self.orders), start=2):
            first, _ = _siblings(shorter)
            counted = np.bincount(longer.prefix, minlength=len(shorter))
            order = np.lexsort((longer.suffix, longer.prefix))
            prefix = longer.prefix[order]
            places = longer.suffix[order] - first[prefix]
            gaps = np.diff(places, prepend=-1) - 1
            begun = (np.cumsum(counted) - counted)[counted > 0]
            gaps[begun] = places[begun]
            sections[f"{n}.children"] = _column(counted)
            sections[f"{n}.gaps"] = _column(gaps)
            sections[f"{n}.levels"] = _column(longer.levels[order])
        return sections

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Pack:
        """The pack in a bundle, with every number in it checked. Raises: BundleError."""
        max_order = bundle.number("max_order", least=1, most=MAX_ORDER)
        words, levels = _read_words(bundle)
        size = len(words)
        alphabetical = np.argsort(-levels, kind="stable")
        none = np.zeros(size, dtype=np.int64)
        orders = [
            WordNgrams(prefix=none, suffix=none, last=np.arange(size), levels=levels[alphabetical])
        ]
        for n in range(2, max_order + 1):
            shorter = orders[-1]
            first, room = _siblings(shorter)
            counted = _get(bundle, f"{n}.children", len(shorter), size + 1)
            if sum(map(len, orders)) + counted.sum() > MAX_NGRAMS or np.any(counted > room):
                raise bundle.wrong(f"section {n}.children has more n-grams than there can be")
            prefix = np.repeat(np.arange(len(shorter)), counted)
            gaps = _get(bundle, f"{n}.gaps", len(prefix), size)
            within = np.cumsum(gaps + 1)
            starts = np.cumsum(counted) - counted
            before = np.concatenate([[0], within])[starts]
            places = within - 1 - np.repeat(before, counted)
            if np.any(places >= room[prefix]):
                raise bundle.wrong(f"section {n}.gaps leads to n-grams that there are not")
            suffix = first[prefix] + places
            levels_read = _get(bundle, f"{n}.levels", len(prefix), len(COUNTS))
            order = np.lexsort((suffix, -levels_read, prefix))
            suffix, last = suffix[order], shorter.last[suffix[order]]
            orders.append(
                WordNgrams(prefix=prefix, suffix=suffix, last=last, levels=levels_read[order])
            )
        return cls([words[place] for place in alphabetical], orders)


def word_probabilities(bundle: Bundle, most: int = 1 << 16) -> dict[str, float]:
    """The share of each of the `most` most frequent words in the text. Raises: BundleError. Cost:
    0.1 s, and 100 bytes for each."""
    known, levels = _read_words(bundle)
    counts = COUNTS[levels]
    shares = counts / counts.sum()
    return {known[n]: float(shares[n]) for n in np.argsort(-counts, kind="stable")[:most]}


def _read_words(bundle: Bundle) -> tuple[list[str], Numbers]:
    size = bundle.number("words", least=1, most=MAX_WORDS)
    text = _unpacked(bundle, "words.text", _MAX_TEXT)
    if text.count(_END.encode()) != size - 1:  # before each of them takes memory
        raise bundle.wrong(f"section words.text does not have {size} words")
    try:
        words = text.decode().split(_END)
    except UnicodeDecodeError as error:
        raise bundle.wrong("section words.text is not UTF-8") from error
    lengths = [*map(len, words)]
    if not 0 < min(lengths) <= max(lengths) <= LONGEST_WORD:
        raise bundle.wrong(
            f"section words.text has words of {min(lengths)} to {max(lengths)} characters, not of "
            f"1 to {LONGEST_WORD}"
        )
    return words, _get(bundle, "words.levels", size, len(COUNTS))


def _siblings(shorter: WordNgrams) -> tuple[Numbers, Numbers]:
    """For each n-gram, where the children of its suffix begin, and how many there are. All words
    are children of the suffix of a single word, the empty n-gram."""
    parents = 1 + max(int(shorter.prefix.max(initial=0)), int(shorter.suffix.max(initial=0)))
    sizes = np.bincount(shorter.prefix, minlength=parents)
    firsts = np.cumsum(sizes) - sizes
    return firsts[shorter.suffix], sizes[shorter.suffix]


def levels_of(counts: NDArray[np.floating[Any]]) -> Numbers:
    """The level of the count that is closest to each, in proportion."""
    edges = np.sqrt(COUNTS[1:] * COUNTS[:-1].astype(np.float64))
    return np.searchsorted(edges, counts, side="right")


def begins_text(word: str) -> bool:
    """Whether a word is the first one of a text; a line end may begin with a line feed too."""
    return word[0] == "\n" and not word.isspace()


# -- columns ---------------------------------------------------------------------------------------


def _column(numbers: Numbers) -> bytes:
    """Numbers of 1, 2 or 4 bytes, as many as the largest takes: all lowest bytes come first."""
    width = next(width for width in _WIDTHS if numbers.max(initial=0) >> 8 * width == 0)
    planes = numbers.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return lzma.compress(planes.tobytes(), filters=_NUMBERS)


def _get(bundle: Bundle, section: str, count: int, limit: int) -> Numbers:
    """The `count` numbers in a column, which have to be below `limit`. Raises: BundleError."""
    data = np.frombuffer(_unpacked(bundle, section, _WIDTHS[-1] * count), dtype=np.uint8)
    width = len(data) // max(1, count)
    if len(data) != width * count or (count and width not in _WIDTHS):
        raise bundle.wrong(f"section {section} has {len(data)} bytes for {count} numbers")
    numbers = np.zeros(count, dtype=np.int64)
    for place, plane in enumerate(data.reshape(width, -1) if count else ()):
        numbers |= plane.astype(np.int64) << 8 * place
    if numbers.max(initial=0) >= limit:
        raise bundle.wrong(f"section {section} has {numbers.max()}, which is not below {limit}")
    return numbers


def _unpacked(bundle: Bundle, section: str, most: int) -> bytes:
    """A section, which has at most `most` bytes. Raises: BundleError."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    packed = bundle.array(section, "u1").tobytes()
    try:
        data = reader.decompress(packed, max_length=most + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise bundle.wrong(f"section {section} cannot be decompressed ({error})") from error
    if len(data) > most or not reader.eof or reader.unused_data:
        raise bundle.wrong(f"section {section} is cut off, or has more than {most} bytes")
    return data
