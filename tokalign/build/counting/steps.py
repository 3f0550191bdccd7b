"""The steps of a count. Each is done share by share, from files to files.

    encode    a share of the corpus files -> runs of sorted windows
    cut       a sample of the keys of all runs -> where each run of the share is cut into key ranges
    count     a share of the key ranges -> the n-grams in them, and how many have which count
    prune     how many n-grams have which count -> those of the share that are frequent enough
    collect   what all shares kept -> `TokenNgrams`

A share needs what all shares of the step before it left in the folder, and nothing else. So the
shares of a step can be done by any process on any machine that sees the folder, in any order, and
again after a failure. Counts are added up before any n-gram is left out, so the result does not
depend on how many shares there are. Who does them: `token_ngrams.py` all in one, on the cores of
one machine; `engines.py` each as a task of datatrove.

A share leaves a *record* of its step, a small file that names the others. What the files hold:
`run_files.py`.
"""

from __future__ import annotations

import math
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import write_file
from tokalign.build.corpus import Corpus, Reading
from tokalign.build.counting.run_files import (
    Layout,
    Run,
    cut_run,
    is_whole,
    merge_runs,
    ranges,
    read_kept,
    read_parts,
    require_whole,
    sample_run,
    write_kept,
    write_part,
    write_run,
)
from tokalign.build.counting.windows import (
    IdArray,
    IdSpace,
    TokenNgrams,
    choose_cuts,
    join_ranges,
    nothing,
)
from tokalign.build.counting.workers import Apply, Task
from tokalign.build.counting.workspace import RECORD, digest
from tokalign.build.text_files import FileStamp
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Advance = Callable[[int], None]
"""Takes the number of bytes of the corpus, on disk, that were done since the last call."""

_FORMAT = 3  # of the files in a workspace; part of their names
_WEIGHT_UNIT = 1000  # weights and counts are kept in thousandths
_MOST_RAISED = 1 << 16
_REMEDY = "make room, or choose a folder on another disk with --workspace"


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the work is cut; the result does not depend on it.

    shard_characters: a shard ends after the line that reaches so many; about 400,000 tokens.
    range_windows: about how many tokens have their n-grams counted at once.
    """

    shard_characters: int = 1 << 20
    range_windows: int = 1 << 18


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` shares of the work of a step; they are numbered from 0 on."""

    number: int = 0
    of: int = 1

    def block(self, total: int) -> tuple[int, int]:
        """The first of so many things that belong to this share, and the first that does not."""
        return total * self.number // self.of, total * (self.number + 1) // self.of

    def __str__(self) -> str:
        return f"{self.number:05d}-of-{self.of:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """What is counted, and the folder in which the shares find each other's files.

    min_count, max_ngrams: see `count_token_ngrams`.
    """

    corpus: Corpus
    tokenizer: Tokenizer[TargetId]
    max_order: int
    min_count: float
    max_ngrams: int
    folder: Path
    chunks: Chunks = Chunks()

    @property
    def space(self) -> IdSpace:
        """How the ids of the tokenizer are written."""
        return IdSpace(len(self.tokenizer.vocabulary))

    @property
    def layout(self) -> Layout:
        """The shape of the windows."""
        return Layout(self.space, self.max_order)

    @property
    def least(self) -> int:
        """The least count of a kept n-gram, in thousandths."""
        return math.ceil(self.min_count * _WEIGHT_UNIT)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the result, as far as it is known before the corpus is read."""
        return {
            **self.corpus.facts,
            "tokenizer": self.tokenizer.fingerprint,
            "max_order": self.max_order,
            "min_count": self.min_count,
            "max_ngrams": self.max_ngrams,
        }


def encode(counting: Counting, share: Share, apply: Apply, advance: Advance) -> None:
    """Turn every `share.of`th corpus file into runs, and tell what was read from it.

    With several shares the runs of one are merged, so that all shares together have few.
    Runs that are whole in the folder already are not made again.
    """
    layout, folder = counting.layout, counting.folder
    if share.of > 1:
        folder = folder / f"encode-{share}"
        folder.mkdir(exist_ok=True)
    runs: list[Run] = []
    stamps: list[FileStamp] = []

    def missing() -> Iterator[Task]:
        readings = counting.corpus.readings(advance, start=share.number, step=share.of)
        for reading in readings:
            weight = round(reading.weight * _WEIGHT_UNIT)
            for lines in _shards(reading, counting.chunks):
                name = digest(_FORMAT, counting.tokenizer.fingerprint, layout.max_order, lines)
                runs.append(Run(folder / f"{name}.run", weight))
                if not is_whole(runs[-1].path):
                    yield runs[-1].path, lines, layout
            stamps.append(reading.stamp())

    for _ in apply(write_run, missing()):
        pass
    kept = runs
    if share.of > 1 and runs:
        kept = [_merge(counting, share, runs, apply)]
    keys = list(apply(sample_run, [(run, layout) for run in kept]))
    _write_record(
        counting,
        "encode",
        share,
        {
            "runs": [[run.path.name, run.weight] for run in kept],
            "keys": b"".join(some.tobytes() for some in keys),
            "stamps": [asdict(stamp) for stamp in stamps],
        },
    )
    if share.of > 1:
        shutil.rmtree(folder)


def _merge(counting: Counting, share: Share, runs: list[Run], apply: Apply) -> Run:
    name = digest(_FORMAT, [(run.path.name, run.weight) for run in runs])
    merged = Run(counting.folder / f"{share}-{name}.merged", None)
    if not is_whole(merged.path):
        task = (merged.path, runs, counting.chunks.range_windows, counting.layout)
        for _ in apply(merge_runs, [task]):
            pass
    return merged


def _shards(reading: Reading, chunks: Chunks) -> Iterator[list[str]]:
    """One file in shards of whole lines."""
    shard: list[str] = []
    size = 0
    for line in reading.paragraphs():
        shard.append(line)
        size += len(line)
        if size >= chunks.shard_characters:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def cut(counting: Counting, share: Share, apply: Apply) -> None:
    """Choose the key ranges, and find where they begin and end in the runs of a share.

    Every share chooses the same ranges, from the samples of all shares.
    Raises: DamagedFileError for a run that a power cut has damaged.
    """
    records = _records(counting, "encode", share.of)
    keys = [np.frombuffer(record["keys"], dtype=np.uint64) for record in records]
    cuts = choose_cuts(keys, counting.chunks.range_windows)
    runs = _runs(counting, [records[share.number]])
    for run in runs:
        require_whole(run.path)
    located = list(apply(cut_run, [(run, cuts, counting.layout) for run in runs]))
    bounds = BytesIO()
    np.save(bounds, np.array(located, dtype=np.int64).reshape(len(runs), len(cuts) + 2))
    write_file(_bounds(counting, share), bounds.getvalue(), remedy=_REMEDY)


def _bounds(counting: Counting, share: Share) -> Path:
    return counting.folder / f"cut-{share}.npy"


def count(counting: Counting, share: Share, apply: Apply, advance: Callable[[float], None]) -> None:
    """Count the n-grams in a share of the key ranges; ranges that are done are not done again.

    advance: called with the part of all windows, of all shares, that was in the range just counted.
    """
    layout = counting.layout
    runs = _runs(counting, _records(counting, "encode", share.of))
    located, windows = _located(counting, share)
    of_all = digest(
        _FORMAT, [(run.path.name, run.weight) for run in runs], located.tobytes(), counting.least
    )
    paths = [counting.folder / f"{of_all}.{i}.part" for i in range(located.shape[1] - 1)]
    missing = (
        (path, runs, bounds, counting.least, layout)
        for path, bounds in zip(paths, ranges(located), strict=True)
        if not is_whole(path)
    )
    for counted in apply(write_part, missing):
        advance(counted / windows)
    summary = [_summarize(paths, order, counting) for order in range(1, counting.max_order + 1)]
    _write_record(
        counting, "count", share, {"parts": [path.name for path in paths], "orders": summary}
    )


def _located(counting: Counting, share: Share) -> tuple[NDArray[np.int64], int]:
    """Where the ranges of a share begin and end in all runs (i64[runs, ranges + 1]), and how many
    windows all ranges of all shares have."""
    located, windows = [], 0
    for number in range(share.of):
        bounds = np.load(_bounds(counting, Share(number, share.of)), mmap_mode="r")
        first, end = share.block(bounds.shape[1] - 1)
        located.append(np.array(bounds[:, first : end + 1]))
        windows += int(bounds[:, -1].sum())
    return np.concatenate(located), windows


def _summarize(parts: list[Path], order: int, counting: Counting) -> dict[str, Any]:
    """How many n-grams of one order have which count; and the first and the last of the share.

    Those two may go on in a neighbouring share, so they are not among the counts.
    """
    steps = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
    first = last = nothing(order, counting.space)
    for ngrams in read_parts(parts, order, counting.layout):
        if len(ngrams):
            steps += _steps(ngrams, counting.least)
            first, last = first if len(first) else ngrams[:1], ngrams[-1:]
    one = len(first) and (first.ids == last.ids).all()
    ends = [last] if one else [first, last]
    for end in ends:
        steps -= _steps(end, counting.least)
    used = np.flatnonzero(steps)
    return {
        "steps": [used.tolist(), steps[used].tolist()],
        "ids": b"".join(end.ids.tobytes() for end in ends),
        "counts": b"".join(end.counts.tobytes() for end in ends),
    }


def _steps(ngrams: TokenNgrams, least: int) -> NDArray[np.int64]:
    """How many n-grams are left out only when the least count is raised by so many units.

    The first number is that of n-grams below the least count itself.
    """
    above = (ngrams.counts - least) // _WEIGHT_UNIT + 1
    return np.bincount(np.clip(above, 0, _MOST_RAISED + 1), minlength=_MOST_RAISED + 2)


def prune(counting: Counting, share: Share) -> None:
    """Leave out the n-grams of a share that are too rare, now that all of them are counted.

    Raises: DamagedFileError for counts that a power cut has damaged.
    """
    records = _records(counting, "count", share.of)
    least = _least_count(counting, records)
    parts = [counting.folder / name for name in records[share.number]["parts"]]
    for part in parts:
        require_whole(part)
    for order in range(1, counting.max_order + 1):
        ends = _ends(records[share.number], order, counting)
        kept = [
            ngrams[(ngrams.counts >= least) | _is_end(ngrams.ids, ends.ids)]
            for ngrams in read_parts(parts, order, counting.layout)
        ]
        write_kept(_kept(counting, share, order), kept)


def _kept(counting: Counting, share: Share, order: int) -> Path:
    return counting.folder / f"prune-{share}.{order}.kept"


def _ends(record: dict[str, Any], order: int, counting: Counting) -> TokenNgrams:
    summary = record["orders"][order - 1]
    ids: IdArray = np.frombuffer(summary["ids"], dtype=counting.space.dtype).reshape(-1, order)
    return TokenNgrams(ids, np.frombuffer(summary["counts"], dtype=np.int64))


def _is_end(ids: IdArray, ends: IdArray) -> NDArray[np.bool]:
    """Which rows are the first or the last of the share: only the first or last row can be."""
    found = np.zeros(len(ids), dtype=bool)
    for at in (0, -1) if len(ids) else ():
        found[at] = (ids[at] == ends).all(axis=1).any()
    return found


def _least_count(counting: Counting, records: list[dict[str, Any]]) -> int:
    """The least count of a kept n-gram, in thousandths: `max_ngrams` decides."""
    steps = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
    for record in records:
        for summary in record["orders"]:
            at, numbers = summary["steps"]
            steps[np.array(at, dtype=np.int64)] += np.array(numbers, dtype=np.int64)
    for order in range(1, counting.max_order + 1):
        for ends in join_ranges(_ends(record, order, counting) for record in records):
            steps += _steps(ends, counting.least)
    kept = np.append(steps[:0:-1].cumsum()[::-1], 0)
    return counting.least + int(np.argmax(kept <= counting.max_ngrams)) * _WEIGHT_UNIT


def collect(counting: Counting, shares: int) -> Iterator[TokenNgrams]:
    """What all shares kept: one `TokenNgrams` per order, the shortest first.

    Cost: 30 bytes per n-gram, of one order at a time. Raises: DamagedFileError.
    """
    least = _least_count(counting, _records(counting, "count", shares))
    whole = all(weight == int(weight) for weight in counting.corpus.weights.values())
    for order in range(1, counting.max_order + 1):
        files = (_kept(counting, Share(number, shares), order) for number in range(shares))
        joined = join_ranges(read_kept(file, order, counting.layout) for file in files)
        kept = [ngrams[ngrams.counts >= least] for ngrams in joined]
        counts = np.concatenate([ngrams.counts for ngrams in kept])
        yield TokenNgrams(
            np.concatenate([ngrams.ids for ngrams in kept]),
            counts // _WEIGHT_UNIT if whole else counts / _WEIGHT_UNIT,
        )


def read_stamps(counting: Counting, shares: int) -> list[FileStamp]:
    """What the shares read from the corpus files."""
    records = _records(counting, "encode", shares)
    return [FileStamp(**stamp) for record in records for stamp in record["stamps"]]


def read_peak_memory(counting: Counting, step: str, shares: int) -> list[int]:
    """The most memory that the process of each share had held when the share was done, in bytes."""
    return [record["peak_memory"] for record in _records(counting, step, shares)]


def _runs(counting: Counting, records: list[dict[str, Any]]) -> list[Run]:
    return [
        Run(counting.folder / name, weight) for record in records for name, weight in record["runs"]
    ]


def _write_record(counting: Counting, step: str, share: Share, content: dict[str, Any]) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = {**content, "peak_memory": peak * (1 if sys.platform == "darwin" else 1024)}
    path = counting.folder / f"{step}-{share}{RECORD}"
    write_file(path, msgpack.packb(content), remedy=_REMEDY)


def _records(counting: Counting, step: str, shares: int) -> list[dict[str, Any]]:
    return [
        msgpack.unpackb((counting.folder / f"{step}-{Share(n, shares)}{RECORD}").read_bytes())
        for n in range(shares)
    ]
