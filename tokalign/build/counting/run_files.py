"""The steps of counting as tasks: each reads files, applies functions of `windows.py`, writes one.

A *run* file holds the sorted windows of one shard, a *part* file the counts of one key range. The
first argument of a task is the state of the process that does it (see `workers`). Only encoding
uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import appearing
from tokalign.build.counting.windows import (
    IdSpace,
    Keys,
    TokenNgrams,
    Windows,
    count_range,
    join_ranges,
    locate_cuts,
    sample_keys,
    sort_windows,
)
from tokalign.build.counting.word_encoder import WordEncoder

_REMEDY = "make room on that disk, or choose a folder on another one with --workspace"


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of the windows in a file."""

    space: IdSpace
    max_order: int

    @property
    def id_bytes(self) -> int:
        """Bytes per id."""
        return self.space.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Run:
    """A file with the sorted windows of one shard. weight: of its n-grams, in thousandths."""

    path: Path
    weight: int

    def read(self, layout: Layout, begin: int = 0, end: int | None = None) -> Windows:
        """The windows from `begin` to `end`."""
        flat = np.fromfile(
            self.path,
            dtype=layout.space.dtype,
            count=-1 if end is None else (end - begin) * layout.max_order,
            offset=begin * layout.max_order * layout.id_bytes,
        )
        return flat.reshape(-1, layout.max_order)


def write_run(encoder: WordEncoder, path: Path, lines: list[str], layout: Layout) -> None:
    """Encode the lines of a shard, and write their windows as a run."""
    windows = sort_windows(encoder.encode(lines), layout.max_order, layout.space)
    with appearing(path, remedy=_REMEDY) as unfinished:
        windows.tofile(unfinished)


def sample_run(_: WordEncoder, run: Run, layout: Layout) -> Keys:
    """A sample of the keys of a run."""
    return sample_keys(run.read(layout), layout.space)


def cut_run(_: WordEncoder, run: Run, cuts: Keys, layout: Layout) -> NDArray[np.int64]:
    """Where a run is cut by the keys at which all runs are cut; see `locate_cuts`."""
    return locate_cuts(run.read(layout), cuts, layout.space)


def write_part(
    _: WordEncoder,
    path: Path,
    runs: list[Run],
    bounds: NDArray[np.int64],
    min_count: int,
    layout: Layout,
) -> int:
    """Count one range of all runs, and write it as a part. Returns how many windows the range has.

    bounds: i64[runs, 2], where the range begins and ends in each run.
    """
    slices = [
        run.read(layout, begin, end)
        for run, (begin, end) in zip(runs, bounds.tolist(), strict=True)
    ]
    counted = count_range(
        slices, [run.weight for run in runs], min_count=min_count, space=layout.space
    )
    with appearing(path, remedy=_REMEDY) as unfinished, unfinished.open("wb") as file:
        np.array([len(ngrams) for ngrams in counted], dtype=np.int64).tofile(file)
        for ngrams in counted:
            ngrams.ids.tofile(file)
            ngrams.counts.tofile(file)
    return sum(map(len, slices))


def read_parts(parts: Iterable[Path], order: int, layout: Layout) -> Iterator[TokenNgrams]:
    """The n-grams of one order, range by range; see `join_ranges`."""
    return join_ranges(_read_part(part, order, layout) for part in parts)


def _read_part(path: Path, order: int, layout: Layout) -> TokenNgrams:
    """The n-grams of one order in one range.

    A part is i64[max_order], the number of n-grams of each order, and then their ids and counts.
    """
    sizes = np.fromfile(path, dtype=np.int64, count=layout.max_order)
    id_bytes, word = layout.id_bytes, sizes.itemsize
    before = sum(k * (n * id_bytes + word) for n, k in enumerate(sizes[: order - 1].tolist(), 1))
    start, size = sizes.nbytes + before, int(sizes[order - 1])
    ids = np.fromfile(path, dtype=layout.space.dtype, count=size * order, offset=start)
    counts = np.fromfile(path, dtype=np.int64, count=size, offset=start + ids.nbytes)
    return TokenNgrams(ids.reshape(size, order), counts)
