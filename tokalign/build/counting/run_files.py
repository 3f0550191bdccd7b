"""The steps of counting as tasks: each reads files, applies functions of `windows.py`, writes one.

A *run* file holds the sorted windows of one shard, a *part* file the counts of one key range. Both
end with a checksum. They are not synced to the disk, because that takes longer than writing them; a
power cut may damage them, and `is_whole` finds that out before a later count uses them. The first
argument of a task is the state of the process that does it (see `workers`). Only encoding uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

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

_REMEDY = (
    "choose a folder on another one with --workspace; finished counts are kept, and the same "
    "command goes on from them"
)
_SEED = crc32(b"tokalign")  # so that a file of zeros is not taken for whole
_CHECKSUM_BYTES = 4
_STEP = 1 << 20


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
        window_bytes = layout.max_order * layout.id_bytes
        if end is None:
            end = (self.path.stat().st_size - _CHECKSUM_BYTES) // window_bytes
        flat = np.fromfile(
            self.path,
            dtype=layout.space.dtype,
            count=(end - begin) * layout.max_order,
            offset=begin * window_bytes,
        )
        return flat.reshape(-1, layout.max_order)


def write_run(encoder: WordEncoder, path: Path, lines: list[str], layout: Layout) -> None:
    """Encode the lines of a shard, and write their windows as a run."""
    windows = sort_windows(encoder.encode(lines), layout.max_order, layout.space)
    _write(path, [windows])


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
    sizes = np.array([len(ngrams) for ngrams in counted], dtype=np.int64)
    _write(path, [sizes, *(array for ngrams in counted for array in (ngrams.ids, ngrams.counts))])
    return sum(map(len, slices))


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


def _write(path: Path, arrays: Iterable[NDArray[Any]]) -> None:
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
    ids = np.fromfile(path, dtype=layout.space.dtype, count=size * order, offset=start)
    counts = np.fromfile(path, dtype=np.int64, count=size, offset=start + ids.nbytes)
    return TokenNgrams(ids.reshape(size, order), counts)
