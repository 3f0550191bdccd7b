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

A share leaves a *record* of its step, a small file that names the others (`shares.py`). What the
others hold: `run_files.py`. Which n-grams are kept: `least_count.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import write_file
from tokalign.build.corpus import batches
from tokalign.build.counting.least_count import is_kept, least_count, summarize
from tokalign.build.counting.run_files import (
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
from tokalign.build.counting.shares import (
    REMEDY,
    WEIGHT_UNIT,
    Counting,
    Share,
    read_records,
    write_record,
)
from tokalign.build.counting.windows import TokenNgrams, choose_cuts, join_ranges
from tokalign.build.counting.workers import Apply, Task
from tokalign.build.counting.workspace import digest
from tokalign.build.text_files import FileStamp

Advance = Callable[[int], None]
"""Takes the number of bytes of the corpus, on disk, that were done since the last call."""

_FORMAT = 3  # of the files in a workspace; part of their names


def encode(counting: Counting, share: Share, apply: Apply, advance: Advance) -> None:
    """Turn every `share.of`th corpus file into runs, and tell what was read from it.

    With several shares the runs of one are merged, so that all shares together have few. A single
    share merges them if it has many, because later steps read from each for every key range.
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
            weight = round(reading.weight * WEIGHT_UNIT)
            for lines in batches(reading.paragraphs(), counting.chunks.shard_characters):
                name = digest(_FORMAT, counting.tokenizer.fingerprint, layout.max_order, lines)
                runs.append(Run(folder / f"{name}.run", weight))
                if not is_whole(runs[-1].path):
                    yield runs[-1].path, lines, layout
            stamps.append(reading.stamp())

    for _ in apply(write_run, missing()):
        pass
    kept = runs
    if share.of > 1 or len(runs) > counting.chunks.most_runs:
        kept = _merge(counting, share, folder, runs, apply)
    keys = list(apply(sample_run, [(run, layout) for run in kept]))
    write_record(
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


def _merge(
    counting: Counting, share: Share, within: Path, runs: list[Run], apply: Apply
) -> list[Run]:
    """Runs merged, some at a time; if there are several shares, into one in the end.

    within: the folder of the share, which is deleted in the end.
    All windows with one key are in memory at once, and there are keys that each text has, such as
    that of a line's end. Where some runs were merged already, equal windows count as one.
    """
    while share.of > 1 and len(runs) > counting.chunks.most_runs:
        runs = _merge_groups(counting, share, within, runs, apply)
    return _merge_groups(counting, share, counting.folder, runs, apply)


def _merge_groups(
    counting: Counting, share: Share, folder: Path, runs: list[Run], apply: Apply
) -> list[Run]:
    """One run for every `most_runs`; those that are whole in the folder are not made again."""
    merged: list[Run] = []
    missing = []
    at_once = counting.chunks.most_runs
    for group in [runs[i : i + at_once] for i in range(0, len(runs), at_once)]:
        name = digest(_FORMAT, [(run.path.name, run.weight) for run in group])
        merged.append(Run(folder / f"{share}-{name}.merged", None))
        if not is_whole(merged[-1].path):
            missing.append((merged[-1].path, group, counting.chunks.range_windows, counting.layout))
    for _ in apply(merge_runs, missing):
        pass
    return merged


def cut(counting: Counting, share: Share, apply: Apply) -> None:
    """Choose the key ranges, and find where they begin and end in the runs of a share.

    Every share chooses the same ranges, from the samples of all shares.
    Raises: DamagedFileError for a run that a power cut has damaged.
    """
    records = read_records(counting, "encode", share.of)
    keys = [np.frombuffer(record["keys"], dtype=np.uint64) for record in records]
    cuts = choose_cuts(keys, counting.chunks.range_windows)
    runs = _runs(counting, [records[share.number]])
    for run in runs:
        require_whole(run.path)
    located = list(apply(cut_run, [(run, cuts, counting.layout) for run in runs]))
    bounds = BytesIO()
    np.save(bounds, np.array(located, dtype=np.int64).reshape(len(runs), len(cuts) + 2))
    write_file(_bounds(counting, share), bounds.getvalue(), remedy=REMEDY)


def _bounds(counting: Counting, share: Share) -> Path:
    return counting.folder / f"cut-{share}.npy"


def count(counting: Counting, share: Share, apply: Apply, advance: Callable[[float], None]) -> None:
    """Count the n-grams in a share of the key ranges; ranges that are done are not done again.

    advance: called with the part of all windows, of all shares, that was in the range just counted.
    """
    layout = counting.layout
    runs = _runs(counting, read_records(counting, "encode", share.of))
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
    summary = [
        summarize(read_parts(paths, order, layout), order, counting)
        for order in range(1, counting.max_order + 1)
    ]
    write_record(
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


def prune(counting: Counting, share: Share) -> None:
    """Leave out the n-grams of a share that are too rare, now that all of them are counted.

    Raises: DamagedFileError for counts that a power cut has damaged.
    """
    records = read_records(counting, "count", share.of)
    least = least_count(counting, [record["orders"] for record in records])
    own = records[share.number]
    parts = [counting.folder / name for name in own["parts"]]
    for part in parts:
        require_whole(part)
    for order, summary in enumerate(own["orders"], 1):
        kept = [
            ngrams[is_kept(ngrams, summary, least, counting)]
            for ngrams in read_parts(parts, order, counting.layout)
        ]
        write_kept(_kept(counting, share, order), kept)


def _kept(counting: Counting, share: Share, order: int) -> Path:
    return counting.folder / f"prune-{share}.{order}.kept"


def collect(counting: Counting, shares: int) -> Iterator[TokenNgrams]:
    """What all shares kept: one `TokenNgrams` per order, the shortest first.

    Cost: 30 bytes per n-gram, of one order at a time. Raises: DamagedFileError.
    """
    records = read_records(counting, "count", shares)
    least = least_count(counting, [record["orders"] for record in records])
    whole = all(weight == int(weight) for weight in counting.corpus.weights.values())
    for order in range(1, counting.max_order + 1):
        files = (_kept(counting, Share(number, shares), order) for number in range(shares))
        joined = join_ranges(read_kept(file, order, counting.layout) for file in files)
        kept = [ngrams[ngrams.counts >= least] for ngrams in joined]
        counts = np.concatenate([ngrams.counts for ngrams in kept])
        yield TokenNgrams(
            np.concatenate([ngrams.ids for ngrams in kept]),
            counts // WEIGHT_UNIT if whole else counts / WEIGHT_UNIT,
        )


def _runs(counting: Counting, records: list[dict[str, Any]]) -> list[Run]:
    return [
        Run(counting.folder / name, weight) for record in records for name, weight in record["runs"]
    ]
