"""The words of a megabyte of text (`tables/pack.py`) as a file, and numbers for all words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.runs import digest, is_whole, read_run, write_run
from tokalign.build.counting.windows import IdArray, IdSpace, sort_windows
from tokalign.build.counting.workers import Apply, Task
from tokalign.tables.pack import LONGEST_WORD, MAX_WORDS

_BEGIN = "\0"  # of a text, while it is cut
# Letters are all that is neither space nor sign; `_` is one where a letter follows it.
_SIGN = r"!-/:-@\[-^`{-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u2190-\u2bff\u3001-\u301f"
_LETTERS = rf"[^\s\0{_SIGN}]*[^\s\0{_SIGN}_]"
_WORD = re.compile(
    rf"\0?[^\S\n]?{_LETTERS}(?:['’]{_LETTERS})*"
    rf"|\0?[{_SIGN}]{_LETTERS}(?:['’]{_LETTERS})*"
    # a line end with the signs before it, and with the indentation but its last space
    rf"|\0?(?: ?[_{_SIGN}]+)?\s*\n(?:\s*(?=[^\S\n]\S)|\s*)"
    rf"|\0? ?[_{_SIGN}]+|\0?[^\S\n]+(?=[^\S\n])|\0?\s|\0"
)
_AT_ONCE = 1 << 29  # bytes of shards whose words are counted at once: some hundred MB of words


class _Shard(NamedTuple):
    """words: different ones. begins: whether each begins a text. numbers: the text, as indices."""

    words: list[str]
    begins: list[bool]
    numbers: NDArray[np.uint32]
    weight: int


def words_of(texts: Sequence[str]) -> list[str]:
    """The words in texts; that which begins a text begins with a line feed (`begins_text`)."""
    return [word.replace(_BEGIN, "\n") for word in _cut(texts)]


def _cut(texts: Sequence[str]) -> list[str]:
    return _WORD.findall("".join([_BEGIN + text.replace(_BEGIN, "") for text in texts]))


def write_words(path: Path, texts: Sequence[str], weight: int) -> None:
    """Write a shard."""
    numbers: dict[str, int] = {}
    text = [numbers.setdefault(word, len(numbers)) for word in _cut(texts)]
    words = [word.replace(_BEGIN, "\n") for word in numbers]
    begins = [word.startswith(_BEGIN) for word in numbers]
    data = msgpack.packb((words, begins, np.array(text, dtype=np.uint32).tobytes(), weight))
    write_run(path, [np.frombuffer(data, dtype=np.uint8)])


def _read(path: Path) -> _Shard:
    words, begins, numbers, weight = msgpack.unpackb(read_run(path))
    return _Shard(words, begins, np.frombuffer(numbers, dtype=np.uint32), weight)


def find_words(shards: Sequence[Path]) -> list[str]:
    """The words with a count of 1 or more, the most frequent `MAX_WORDS` of them, sorted. They are
    counted part by part, so that a large corpus does not fill the memory. Longer words than a pack
    holds cut the text."""
    parts = 1 + sum(path.stat().st_size for path in shards) // _AT_ONCE
    best: list[tuple[int, str]] = []
    for part in range(parts):
        counts: Counter[str] = Counter()
        for path in shards:
            shard = _read(path)
            times = np.bincount(shard.numbers, minlength=len(shard.words)) * shard.weight
            for word, count in zip(shard.words, times.tolist(), strict=True):
                if parts == 1 or crc32(word.encode()) % parts == part:
                    counts[word] += count
        kept = ((-n, word) for word, n in counts.items() if n >= 1000 and len(word) <= LONGEST_WORD)
        best = nsmallest(MAX_WORDS, (*best, *kept))
    return sorted(word for _, word in best)


def number_words(
    shards: Sequence[Path], words: Sequence[str], folder: Path, apply: Apply, max_order: int
) -> list[Path]:
    """A run of windows for each shard. Gaps stand for words that are not in the list, too."""
    space, listed = IdSpace(len(words)), digest(words)
    runs = [folder / f"{digest(listed, path.name)}.numbered" for path in shards]
    known = {word: number for number, word in enumerate(words)}

    def missing() -> Iterator[Task]:
        for path, run in zip(shards, runs, strict=True):
            if not is_whole(run):
                shard = _read(path)
                ids = np.array([known.get(word, space.gap) for word in shard.words], space.dtype)
                starts = np.flatnonzero(np.array(shard.begins)[shard.numbers])[1:]
                text = np.append(np.insert(ids[shard.numbers], starts, space.gap), space.gap)
                yield run, text.astype(space.dtype), max_order, space, shard.weight

    for _ in apply(_write_windows, missing()):
        pass
    return runs


def _write_windows(
    _: object, path: Path, ids: IdArray, max_order: int, space: IdSpace, weight: int
) -> None:
    write_run(path, [sort_windows(ids, max_order, space, weight=weight)])
