"""Counting the token n-grams of a corpus of any size, in bounded memory, on all cores.

The corpus is cut into shards. Each shard becomes ids (`word_encoder.py`) and then a sorted run on
disk. The runs are cut into key ranges, and each range is counted (`windows.py`). A step depends on
its shard or range alone and leaves one file (`run_files.py`), so the steps can be done by any
process in any order, and a killed count resumes from the files that are there (`workspace.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus
from tokalign.build.counting.memory_budget import MEMORY, plan_processes
from tokalign.build.counting.run_files import (
    Layout,
    Run,
    cut_run,
    is_whole,
    read_parts,
    sample_run,
    write_part,
    write_run,
)
from tokalign.build.counting.windows import IdSpace, TokenNgrams, choose_cuts
from tokalign.build.counting.word_encoder import WordEncoder
from tokalign.build.counting.workers import Apply, Task, workers
from tokalign.build.counting.workspace import digest, open_workspace
from tokalign.build.stages import Stage, silent
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MAX_ORDER = 9
MIN_COUNT = 2
MAX_NGRAMS = 16_000_000

_FORMAT = 2  # of the files in a workspace; part of their names
_WEIGHT_UNIT = 1000  # weights and counts are kept in thousandths
_MOST_RAISED = 1 << 16
_WORTH_A_PROCESS = 1 << 21  # bytes on disk; a process takes a second to start


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the work is cut; the result does not depend on it.

    shard_characters: a shard ends after the line that reaches so many; about 400,000 tokens.
    range_windows: about how many tokens have their n-grams counted at once.
    """

    shard_characters: int = 1 << 20
    range_windows: int = 1 << 18


_CHUNKS = Chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counting:
    """What is counted, where the files are kept, and who does the tasks."""

    tokenizer: str
    layout: Layout
    min_count: int
    chunks: Chunks
    folder: Path
    apply: Apply


def count_token_ngrams(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    max_order: int = MAX_ORDER,
    min_count: float = MIN_COUNT,
    max_ngrams: int = MAX_NGRAMS,
    memory: int = MEMORY,
    jobs: int | None = None,
    workspace: Path | None = None,
    stage: Stage = silent,
    chunks: Chunks = _CHUNKS,
) -> Iterator[TokenNgrams]:
    """Count the n-grams of order 1 to `max_order` in each line, as `tokenizer.encode` has it.

    Yields one `TokenNgrams` per order, the shortest first; an order may be empty. No n-gram crosses
    the end of a line. Its count is the sum, over the corpus files, of its occurrences times the
    weight of the file; n-grams with a count below `min_count` are left out. The prefix and the
    suffix of a kept n-gram are kept too. The result does not depend on `memory`, `jobs`,
    `workspace` and `chunks`.

    max_ngrams: the most n-grams to keep, of all orders together; `min_count` is raised by 1 until
        they fit. It bounds the memory of the result: 30 bytes per n-gram.
    memory: how many bytes all processes together may hold at once, without the result.
    jobs: the most processes; default: one per core, fewer for a small corpus.
    workspace: a folder for finished files, from which a killed count resumes. It is deleted at the
        end, and takes about 30 bytes per token. Default: a temporary folder.
    stage: shows two steps, in bytes of the corpus on disk.
    Raises: UsageError if `memory` is too little, or another process uses the workspace.
    """
    space = IdSpace(len(tokenizer.vocabulary))
    jobs = jobs or min(os.cpu_count() or 1, 1 + corpus.size // _WORTH_A_PROCESS)
    jobs, max_words = plan_processes(memory, jobs=jobs, vocabulary_size=space.size)
    with open_workspace(workspace) as folder:
        with workers(jobs, partial(_make_encoder, tokenizer, space, max_words)) as apply:
            counting = _Counting(
                tokenizer=tokenizer.fingerprint,
                layout=Layout(space, max_order),
                min_count=math.ceil(min_count * _WEIGHT_UNIT),
                chunks=chunks,
                folder=folder,
                apply=apply,
            )
            with stage(corpus.size, "Encoding the corpus") as advance:
                runs = _sort_runs(corpus, counting, advance)
            with stage(corpus.size, "Counting token n-grams") as advance:
                parts = _count_ranges(runs, counting, lambda part: advance(int(part * corpus.size)))
        least = _least_count(parts, counting, max_ngrams)
        whole = all(run.weight % _WEIGHT_UNIT == 0 for run in runs)
        for order in range(1, max_order + 1):
            kept = [
                ngrams[ngrams.counts >= least]
                for ngrams in read_parts(parts, order, counting.layout)
            ]
            counts = np.concatenate([ngrams.counts for ngrams in kept])
            yield TokenNgrams(
                np.concatenate([ngrams.ids for ngrams in kept]),
                counts // _WEIGHT_UNIT if whole else counts / _WEIGHT_UNIT,
            )


def _make_encoder(tokenizer: Tokenizer[TargetId], space: IdSpace, max_words: int) -> WordEncoder:
    return WordEncoder(tokenizer, space, max_words=max_words)


def _sort_runs(corpus: Corpus, counting: _Counting, advance: Callable[[int], None]) -> list[Run]:
    """A run for each shard. Runs that are whole in the workspace already are not made again."""
    runs: list[Run] = []

    def missing() -> Iterator[Task]:
        for weight, lines in _shards(corpus, counting.chunks, advance):
            name = digest(_FORMAT, counting.tokenizer, counting.layout.max_order, lines)
            runs.append(Run(counting.folder / f"{name}.run", weight))
            if not is_whole(runs[-1].path):
                yield runs[-1].path, lines, counting.layout

    for _ in counting.apply(write_run, missing()):
        pass
    return runs


def _shards(
    corpus: Corpus, chunks: Chunks, advance: Callable[[int], None]
) -> Iterator[tuple[int, list[str]]]:
    """The corpus in shards of whole lines, each of one file, with its weight in thousandths."""
    for weight, lines in corpus.files(advance):
        shard: list[str] = []
        size = 0
        for line in lines:
            shard.append(line)
            size += len(line)
            if size >= chunks.shard_characters:
                yield round(weight * _WEIGHT_UNIT), shard
                shard, size = [], 0
        if shard:
            yield round(weight * _WEIGHT_UNIT), shard


def _count_ranges(
    runs: list[Run], counting: _Counting, advance: Callable[[float], None]
) -> list[Path]:
    """A part for each key range.

    advance: called with the share of all windows that were in the range just counted.
    """
    layout, apply = counting.layout, counting.apply
    samples = list(apply(sample_run, [(run, layout) for run in runs]))
    cuts = choose_cuts(samples, counting.chunks.range_windows)
    located = np.array(list(apply(cut_run, [(run, cuts, layout) for run in runs])))
    of_all = digest(
        _FORMAT, [(r.path.name, r.weight) for r in runs], cuts.tobytes(), counting.min_count
    )
    parts = [counting.folder / f"{of_all}.{i}.part" for i in range(len(cuts) + 1)]
    missing = (
        (part, runs, bounds, counting.min_count, layout)
        for part, bounds in zip(parts, _bounds(located), strict=True)
        if not is_whole(part)
    )
    for windows in apply(write_part, missing):
        advance(windows / located[:, -1].sum())
    return parts


def _bounds(located: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """For each range i64[runs, 2]: where it begins and ends in each run."""
    return [located[:, i : i + 2] for i in range(located.shape[1] - 1)]


def _least_count(parts: list[Path], counting: _Counting, max_ngrams: int) -> int:
    """The least count of a kept n-gram, in thousandths: see `max_ngrams`."""
    steps = np.zeros(_MOST_RAISED + 1, dtype=np.int64)
    min_count = counting.min_count
    for order in range(1, counting.layout.max_order + 1):
        for ngrams in read_parts(parts, order, counting.layout):
            above = ngrams.counts[ngrams.counts >= min_count] - min_count
            steps += np.bincount(
                np.minimum(above // _WEIGHT_UNIT, _MOST_RAISED), minlength=len(steps)
            )
    kept = np.append(steps[::-1].cumsum()[::-1], 0)
    return min_count + int(np.argmax(kept <= max_ngrams)) * _WEIGHT_UNIT
