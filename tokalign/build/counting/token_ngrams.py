"""Counting the n-grams of a corpus of any size, in bounded memory, on all cores, in two steps.

    encode    corpus files -> a run of sorted windows for every megabyte of text, merged into few
    count     all runs, stretch by stretch -> the n-grams of all orders, with their counts

A run is a file that depends on its text alone. So runs are made by several processes or machines
(`cluster.py`), and a killed count resumes from those that are there. Counts are added up before any
n-gram is left out, so the result does not depend on how the work is cut.
For a pack the first step leaves the words of each megabyte (`word_shards.py`): they have numbers
only when all of them are counted. The second step then makes the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokalign.build.corpus import Corpus, Stage, batches, silent
from tokalign.build.counting.ngram_tree import NgramLevel, grow_tree
from tokalign.build.counting.runs import (
    NgramFile,
    digest,
    is_whole,
    merge_runs,
    open_workspace,
    stretches,
    write_run,
)
from tokalign.build.counting.windows import (
    WEIGHT_UNIT,
    IdSpace,
    TokenNgrams,
    count_ngrams,
    sort_windows,
)
from tokalign.build.counting.word_encoder import WordEncoder
from tokalign.build.counting.word_shards import find_words, number_words, write_words
from tokalign.build.counting.workers import MEMORY, Apply, Task, jobs_for, plan_processes, workers
from tokalign.build.text_files import TextFile
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tables.header import FileStamp
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MIN_COUNT = 2
MAX_NGRAMS = 16_000_000

_FORMAT = 7  # of the files in a workspace; part of their names, and of a job

# How the work is cut, on which the result does not depend.
_SHARD = 1 << 20  # characters; a shard ends after the line that reaches them: 400,000 tokens
_AT_ONCE = 1 << 18  # about how many windows are in memory at once
_MOST_RUNS = 1 << 9  # 2 or more; more runs than that are merged, at most this many at a time


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted: the n-grams of order 1 to `max_order` in each line of a corpus.

    tokenizer: cuts the lines; None cuts whole texts into the words of packs.
    min_count: the least count, which is the sum of the occurrences times the weights of the files.
    rare_orders: n-grams up to this order are kept from a count of 1 on.
    max_ngrams: the most n-grams to keep; the least counts are raised by 1 until they fit. It bounds
    the memory of the result: 30 bytes per n-gram.
    """

    corpus: Corpus
    tokenizer: Tokenizer[TargetId] | None
    _: KW_ONLY
    max_order: int = MAX_CONTEXT + 1
    min_count: float = MIN_COUNT
    rare_orders: int = 0
    max_ngrams: int = MAX_NGRAMS

    @property
    def unit(self) -> str:
        return "words" if self.tokenizer is None else self.tokenizer.fingerprint

    @property
    def vocabulary_size(self) -> int:
        return 0 if self.tokenizer is None else len(self.tokenizer.vocabulary)

    def least(self, order: int) -> int:
        least = min(1, self.min_count) if order <= self.rare_orders else self.min_count
        return math.ceil(least * WEIGHT_UNIT)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the result, as far as it is known before the corpus is read."""
        return {
            **self.corpus.facts,
            "format": _FORMAT,
            "tokenizer": self.unit,
            "max_order": self.max_order,
            "min_count": self.min_count,
            "rare_orders": self.rare_orders,
            "max_ngrams": self.max_ngrams,
        }


@dataclass(frozen=True, slots=True)
class Counted:
    """The n-grams that are kept, as a tree. words: by their numbers in a pack. stamp: of the corpus
    that was counted."""

    levels: list[NgramLevel]
    words: Sequence[str]
    stamp: Mapping[str, Any]


def count_corpus(
    counting: Counting,
    *,
    memory: int = MEMORY,
    workspace: Path | None = None,
    stage: Stage = silent,
) -> Counted:
    """Count the n-grams of a corpus on this machine.

    memory: how many bytes all processes together may hold at once, without the result.
    workspace: a folder for finished files, about 40 to 80 bytes per token, from which a killed
    count resumes. Raises: UsageError if `memory` is too little, or another process uses the
    workspace.
    """
    size = counting.corpus.size
    jobs, max_words = plan_processes(
        memory, jobs=jobs_for(size), vocabulary_size=counting.vocabulary_size
    )
    with open_workspace(workspace) as folder:
        with workers(jobs, partial(make_encoder, counting.tokenizer, max_words)) as apply:
            with stage(size, "Encoding the corpus", "bytes") as advance:
                readings = counting.corpus.readings(advance)
                shards, stamps = encode(counting, readings, folder, apply)
            counting.corpus.finish(stamps)
            with stage(size, "Counting n-grams", "bytes") as advance:
                orders, words = count(
                    counting, shards, folder, apply, lambda part: advance(int(part * size))
                )
        return Counted(grow_tree(orders), words, counting.corpus.stamp)


def make_encoder(tokenizer: Tokenizer[TargetId] | None, max_words: int) -> WordEncoder | None:
    """The state of a process that encodes; words need none."""
    return None if tokenizer is None else WordEncoder(tokenizer, max_words)


def encode(
    counting: Counting,
    readings: Iterable[TextFile],
    folder: Path,
    apply: Apply,
    *,
    most: int | None = None,
) -> tuple[list[Path], list[FileStamp]]:
    """Turn corpus files into few runs in this folder (at most `most`), or into shards of words.
    Files that are whole already are not made again. Returns: these files, and what was read."""
    shards: list[Path] = []
    stamps: list[FileStamp] = []

    def missing() -> Iterator[Task]:
        for reading in readings:
            weight = round(reading.weight * WEIGHT_UNIT)
            paragraphs = reading.paragraphs(whole=True)
            for lines in batches(paragraphs, _SHARD):
                name = digest(_FORMAT, counting.unit, counting.max_order, weight, lines)
                shards.append(folder / f"{name}.run")
                if not is_whole(shards[-1]):
                    yield shards[-1], lines, counting.max_order, weight
            stamps.append(reading.stamp())

    for _ in apply(_write_shard, missing()):
        pass
    if counting.tokenizer is not None:
        dtype = IdSpace(counting.vocabulary_size).windows(counting.max_order)
        shards = _merge(shards, dtype, folder, apply, most or _MOST_RUNS)
    return shards, stamps


def _write_shard(
    encoder: WordEncoder | None, path: Path, lines: list[str], max_order: int, weight: int
) -> None:
    if encoder is None:
        write_words(path, lines, weight)
    else:
        windows = sort_windows(encoder.encode(lines), max_order, encoder.space, weight=weight)
        write_run(path, [windows])


def _merge(
    runs: list[Path], dtype: np.dtype[np.void], folder: Path, apply: Apply, most: int
) -> list[Path]:
    """Merge runs until there are at most `most`; those that are whole are not made again."""
    while len(runs) > most:
        groups = [runs[start : start + _MOST_RUNS] for start in range(0, len(runs), _MOST_RUNS)]
        names = [digest(_FORMAT, [run.name for run in group]) for group in groups]
        merged = [folder / f"{name}.merged" for name in names]
        tasks = zip(merged, groups, strict=True)
        missing = [(*task, dtype, _AT_ONCE) for task in tasks if not is_whole(task[0])]
        for _ in apply(merge_runs, missing):
            pass
        runs = merged
    return runs


def count(
    counting: Counting,
    shards: Sequence[Path],
    folder: Path,
    apply: Apply,
    advance: Callable[[float], object],
) -> tuple[Iterator[TokenNgrams], Sequence[str]]:
    """Count the n-grams of all shards. Those of each order are a file in the folder.

    advance: called with the part of all windows that is counted next.
    Returns: those of each order, to be read once, and the words of a pack by their numbers.
    """
    words: Sequence[str] = ()
    runs, space = list(shards), IdSpace(counting.vocabulary_size)
    if counting.tokenizer is None:
        words = find_words(shards)
        space = IdSpace(len(words))
        runs = number_words(shards, words, folder, apply, counting.max_order)
        runs = _merge(runs, space.windows(counting.max_order), folder, apply, _MOST_RUNS)
    least = [counting.least(n) for n in range(1, counting.max_order + 1)]
    dtype = space.windows(counting.max_order)
    windows = sum(run.stat().st_size for run in runs) / dtype.itemsize

    def tasks() -> Iterator[Task]:
        for stretch in stretches(runs, dtype, _AT_ONCE):
            advance(len(stretch) / windows)
            yield stretch, space, least

    orders = [
        NgramFile(folder / f"{n}.counted", space, n, rare) for n, rare in enumerate(least, start=1)
    ]
    for stretch in apply(count_ngrams, tasks()):
        for order, ngrams in zip(orders, stretch, strict=True):
            order.add(ngrams)
    raised = np.sum([order.finish() for order in orders], axis=0)
    kept = np.append(raised[:0:-1].cumsum()[::-1], 0)
    more = int(np.argmax(kept <= counting.max_ngrams)) * WEIGHT_UNIT
    whole = all(weight == int(weight) for weight in counting.corpus.weights.values())
    return (order.kept(more, whole=whole) for order in orders), words
