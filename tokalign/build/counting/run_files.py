"""Counting as tasks: each reads files, applies functions of `windows.py`, writes one.

A *run* file holds the sorted windows of one shard, or the partial counts of many. A *part* file
holds n-grams with counts: those of one key range, or those of one order that are kept. All end with
a checksum. They are not synced to the disk, because that takes longer than writing them; a power
cut may damage them, and `is_whole` finds that out before a later count uses them. The first
argument of a task is the state of the process that does it (see `workers`). Only encoding uses it.
The steps that the tasks belong to: `steps.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tokalign.atomic_file import appearing
from tokalign.build.counting.windows import (
    CountedWindows,
    IdSpace,
    Keys,
    TokenNgrams,
    choose_cuts,
    count_range,
    join_ranges,
    locate_cuts,
    merge_range,
    sample_keys,
    sort_windows,
)
from tokalign.build.counting.word_encoder import WordEncoder
from tokalign.errors import OutputError

_REMEDY = (
    "choose a folder on another one with --workspace; finished counts are kept, and the same "
    "command goes on from them"
)
_SEED = crc32(b"tokalign")  # so that a file of zeros is not taken for whole
_CHECKSUM_BYTES = 4
_STEP = 1 << 20
_WINDOWS = 1 << 20  # of a run that are in memory at once
_AT_ONCE = 1 << 19  # of a key range, if fewer of them are different; twice a usual range


class DamagedFileError(OutputError):
    """A file of a count that is not as it was written; carries its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} is only half-written, as a power cut leaves a file")

    def __reduce__(self) -> tuple[type[DamagedFileError], tuple[Path]]:
        return type(self), (self.path,)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of the windows in a file."""

    space: IdSpace
    max_order: int

    @property
    def id_bytes(self) -> int:
        """Bytes per id."""
        return self.space.dtype.itemsize

    @property
    def window(self) -> np.dtype[np.void]:
        """A window in a run of one shard."""
        return np.dtype([("ids", self.space.dtype, (self.max_order,))])

    @property
    def counted_window(self) -> np.dtype[np.void]:
        """A window in a run of partial counts."""
        return np.dtype([("ids", self.space.dtype, (self.max_order,)), ("count", np.int64)])


@dataclass(frozen=True, slots=True)
class Run:
    """A file with windows in the order of their keys.

    weight: of every window, in thousandths, or None for partial counts, which have a count each.
    """

    path: Path
    weight: int | None

    def length(self, layout: Layout) -> int:
        """How many windows it has."""
        return (self.path.stat().st_size - _CHECKSUM_BYTES) // self._dtype(layout).itemsize

    def read(self, layout: Layout, begin: int = 0, end: int | None = None) -> CountedWindows:
        """The windows from `begin` to `end`."""
        dtype = self._dtype(layout)
        end = self.length(layout) if end is None else end
        rows = np.fromfile(self.path, dtype=dtype, count=end - begin, offset=begin * dtype.itemsize)
        counts = np.full(len(rows), self.weight) if self.weight is not None else rows["count"]
        return CountedWindows(rows["ids"].reshape(-1, layout.max_order), counts)

    def _dtype(self, layout: Layout) -> np.dtype[np.void]:
        return layout.counted_window if self.weight is None else layout.window

    def blocks(self, layout: Layout) -> Iterator[CountedWindows]:
        """All windows, a million at a time."""
        length = self.length(layout)
        for begin in range(0, length, _WINDOWS):
            yield self.read(layout, begin, min(begin + _WINDOWS, length))


def write_run(encoder: WordEncoder, path: Path, lines: list[str], layout: Layout) -> None:
    """Encode the lines of a shard, and write their windows as a run."""
    windows = sort_windows(encoder.encode(lines), layout.max_order, layout.space)
    write_arrays(path, [windows])


def sample_run(_: object, run: Run, layout: Layout) -> Keys:
    """A sample of the keys of a run."""
    blocks = [sample_keys(block.windows, layout.space) for block in run.blocks(layout)]
    return np.concatenate([*blocks, np.zeros(0, dtype=np.uint64)])


def cut_run(_: object, run: Run, cuts: Keys, layout: Layout) -> NDArray[np.int64]:
    """Where a run is cut by the keys at which all runs are cut; see `locate_cuts`."""
    bounds = np.zeros(len(cuts) + 2, dtype=np.int64)
    for block in run.blocks(layout):
        bounds += locate_cuts(block.windows, cuts, layout.space)
    return bounds


def merge_runs(
    _: object, path: Path, runs: Sequence[Run], range_windows: int, layout: Layout
) -> None:
    """Write one run of partial counts in place of many runs."""
    cuts = choose_cuts([sample_run(None, run, layout) for run in runs], range_windows)
    located = np.array([cut_run(None, run, cuts, layout) for run in runs])
    write_arrays(path, (_merged(runs, bounds, layout) for bounds in ranges(located)))


def _merged(runs: Sequence[Run], bounds: NDArray[np.int64], layout: Layout) -> NDArray[np.void]:
    merged = merge_range(_slices(runs, bounds, layout), layout.space)
    rows = np.zeros(len(merged), dtype=layout.counted_window)
    rows["ids"], rows["count"] = merged.windows, merged.counts
    return rows


def ranges(located: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """For each range i64[runs, 2]: where it begins and ends in each run."""
    return (located[:, i : i + 2] for i in range(located.shape[1] - 1))


def _slices(runs: Sequence[Run], bounds: NDArray[np.int64], layout: Layout) -> list[CountedWindows]:
    """One key range of all runs. If it is large, equal windows are put together as it is read.

    A key may be as frequent as a text likes: one character, repeated, is a text of one key.
    """
    slices: list[CountedWindows] = []
    size, most = 0, _AT_ONCE
    for run, (first, last) in zip(runs, bounds.tolist(), strict=True):
        for begin in range(first, max(last, first + 1), _AT_ONCE):
            slices.append(run.read(layout, begin, min(begin + _AT_ONCE, last)))
            size += len(slices[-1])
            if size > most:
                slices = [merge_range(slices, layout.space)]
                size = len(slices[0])
                most = max(_AT_ONCE, 2 * size)  # so that all merges take about linear time
    return slices


def write_part(
    _: object,
    path: Path,
    runs: Sequence[Run],
    bounds: NDArray[np.int64],
    min_count: int,
    layout: Layout,
) -> int:
    """Count one range of all runs, and write it as a part. Returns how many windows the range has.

    bounds: i64[runs, 2], where the range begins and ends in each run.
    """
    slices = _slices(runs, bounds, layout)
    counted = count_range(slices, min_count=min_count, space=layout.space)
    sizes = np.array([len(ngrams) for ngrams in counted], dtype=np.int64)
    write_arrays(
        path, [sizes, *(array for ngrams in counted for array in (ngrams.ids, ngrams.counts))]
    )
    return int(np.diff(bounds).sum())


def is_whole(path: Path) -> bool:
    """Whether a run or a part is there, with the checksum that it was written with."""
    checksum, left = _SEED, b""
    try:
        with path.open("rb") as file:
            while data := file.read(_STEP):
                data = left + data
                left = data[-_CHECKSUM_BYTES:]
                checksum = crc32(memoryview(data)[:-_CHECKSUM_BYTES], checksum)
    except OSError:
        return False
    return left == checksum.to_bytes(_CHECKSUM_BYTES, "little")


def require_whole(path: Path) -> None:
    """Raises: DamagedFileError for a file that does not end with its checksum."""
    if not is_whole(path):
        raise DamagedFileError(path)


def write_arrays(path: Path, arrays: Iterable[NDArray[Any]]) -> None:
    """Write arrays one after the other, and their checksum.

    `ndarray.tofile` is not used: it does not notice that the last few bytes find no room.
    """
    checksum = _SEED
    with appearing(path, remedy=_REMEDY, sync=False) as unfinished, unfinished.open("wb") as file:
        for array in arrays:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(data)
            checksum = crc32(data, checksum)
        file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))


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
    return _read_ngrams(path, order, size, start, layout)


def write_kept(path: Path, ngrams: Sequence[TokenNgrams]) -> None:
    """Write the n-grams of one order that are kept: their number, ids and counts."""
    size = np.array([sum(map(len, ngrams))], dtype=np.int64)
    write_arrays(path, [size, *(some.ids for some in ngrams), *(some.counts for some in ngrams)])


def read_kept(path: Path, order: int, layout: Layout) -> TokenNgrams:
    """The n-grams that `write_kept` wrote. Raises: DamagedFileError."""
    require_whole(path)
    size = np.fromfile(path, dtype=np.int64, count=1)
    return _read_ngrams(path, order, int(size[0]), size.nbytes, layout)


def _read_ngrams(path: Path, order: int, size: int, start: int, layout: Layout) -> TokenNgrams:
    ids = np.fromfile(path, dtype=layout.space.dtype, count=size * order, offset=start)
    counts = np.fromfile(path, dtype=np.int64, count=size, offset=start + ids.nbytes)
    return TokenNgrams(ids.reshape(size, order), counts)
