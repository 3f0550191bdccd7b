"""Words as a vocabulary: the engine counts n-grams of words as it counts those of tokens.

What a word is, and what its n-grams are counted for: `tables/pack.py`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np

from tokalign.build.corpus import Corpus, Stage, batches, silent
from tokalign.build.counting.windows import IdArray, IdSpace
from tokalign.build.counting.workers import Task, workers
from tokalign.tables.pack import MAX_WORDS

_WORD = re.compile(r"[\n ]?\S*\w|[\n ]?[^\w\s]+|[\n ]?\s")
_SHARD = 1 << 22  # characters whose words are counted together
_LONGEST = 64  # characters; longer words are addresses and the like, and cut the text
_WORTH_A_PROCESS = 1 << 21  # bytes on disk


def words_of(lines: Sequence[str]) -> list[str]:
    """The words of lines; that which begins a line begins with a line feed."""
    return _WORD.findall("".join([f"\n{line}" for line in lines]))


@dataclass(frozen=True)
class WordList:
    """Words as a vocabulary, for the counting engine. They are sorted."""

    vocabulary: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Tells lists apart."""
        return sha256("\0".join(self.vocabulary).encode()).hexdigest()

    @property
    def space(self) -> IdSpace:
        return IdSpace(len(self.vocabulary))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.vocabulary)}

    def __getstate__(self) -> dict[str, object]:
        return {"vocabulary": self.vocabulary}

    def encode(self, lines: Sequence[str]) -> IdArray:
        """Numbers of words. Gaps stand for line ends and for words that are not in the list."""
        words, gap = words_of(lines), self.space.gap
        found = np.array([self._numbers.get(word, gap) for word in words], dtype=self.space.dtype)
        starts = np.flatnonzero([word[0] == "\n" for word in words])[1:]
        return np.append(np.insert(found, starts, gap), gap).astype(self.space.dtype)


def find_words(corpus: Corpus, *, stage: Stage = silent) -> WordList:
    """The words with a count of 1 or more, the most frequent `MAX_WORDS` of them."""
    counts: dict[str, float] = {}
    with (
        stage(corpus.size, "Counting words") as advance,
        workers(min(os.cpu_count() or 1, 1 + corpus.size // _WORTH_A_PROCESS), object) as apply,
    ):

        def tasks() -> Iterator[Task]:
            for reading in corpus.readings(advance):
                for lines in batches(reading.paragraphs(), _SHARD):
                    yield lines, reading.weight

        for found in apply(_count_words, tasks()):
            for word, times in found.items():
                counts[word] = counts.get(word, 0) + times
            if len(counts) > 2 * MAX_WORDS:
                counts = dict(_most_frequent(counts, MAX_WORDS))
    kept = {word: times for word, times in counts.items() if times >= 1}
    return WordList(sorted(word for word, _ in _most_frequent(kept, MAX_WORDS)))


def _most_frequent(counts: Mapping[str, float], most: int) -> list[tuple[str, float]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]


def _count_words(_: object, lines: list[str], weight: float) -> dict[str, float]:
    counted = Counter(words_of(lines))
    return {word: weight * n for word, n in counted.items() if len(word) <= _LONGEST}
