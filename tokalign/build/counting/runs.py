"""The files of a count: sorted windows, merged as an external sort does it; n-grams; their folder.

A *run* is a file with the different windows of a shard, sorted, and a checksum: runs are not synced
to the disk, so a power cut may leave half a file. They are read block by block: all windows up to
the least of the last windows of the blocks in memory are a *stretch*, and no later block has one of
them. So the memory does not depend on the number of runs, nor on what is in them.
Source: external merge sort, as in BurntSushi's `fst` for keys that do not fit in memory.

A *workspace* is a folder of finished runs, from which a killed build resumes. A run is named after
a digest of everything it was made from.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.windows import (
    WEIGHT_UNIT,
    IdSpace,
    TokenNgrams,
    Windows,
    join,
    merge_windows,
)
from tokalign.errors import UsageError
from tokalign.locks import locked
from tokalign.storage import TEMPORARY_SUFFIX, appearing, parents_of, writing_to

REMEDY = "in build give a --workspace on another disk; build goes on from what is finished"
_SEED = crc32(b"tokalign")  # so that a file of zeros is not taken for whole
_WHOLE = 0x2144DF1C  # the CRC-32 of any bytes that their CRC-32 follows
_CHECKSUM_BYTES = 4
_STEP = 1 << 20


def write_run(path: Path, parts: Iterable[NDArray[Any]]) -> None:
    """Write the parts of a run and its checksum. (`ndarray.tofile` does not notice a full disk.)"""
    checksum = _SEED
    with appearing(path, remedy=REMEDY, sync=False) as unfinished, unfinished.open("wb") as file:
        for part in parts:
            data = np.ascontiguousarray(part).view(np.uint8).data
            file.write(data)
            checksum = crc32(data, checksum)
        file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))


def is_whole(path: Path) -> bool:
    """Whether a run is there, with the checksum that it was written with."""
    checksum = _SEED
    try:
        with path.open("rb") as file:
            while data := file.read(_STEP):
                checksum = crc32(data, checksum)
    except OSError:
        return False
    return checksum == _WHOLE


def read_run(path: Path) -> bytes:
    """The content of a run that is whole."""
    return path.read_bytes()[:-_CHECKSUM_BYTES]


def merge_runs(
    _: object, path: Path, runs: Sequence[Path], dtype: np.dtype[np.void], at_once: int
) -> None:
    """Write one run in place of many. The first argument is the state of the process."""
    write_run(path, map(merge_windows, stretches(runs, dtype, at_once)))


def stretches(runs: Sequence[Path], dtype: np.dtype[np.void], at_once: int) -> Iterator[Windows]:
    """The windows of all runs, stretch by stretch: all of one lie before all of the next.

    Windows of several runs are in one stretch, in any order. at_once: about how many a stretch has;
    twice as many are in memory.
    """
    size = max(1, at_once // max(1, len(runs)))
    offsets = [0] * len(runs)  # by number: equal shards are one file, which counts twice

    def fill(number: int, block: Windows) -> Windows:
        """Add the next block to one that is no longer whole, so that stretches stay long."""
        if len(block) >= size:
            return block
        end, offset = runs[number].stat().st_size - _CHECKSUM_BYTES, offsets[number]
        count = min(size, (end - offset) // dtype.itemsize)
        read = np.fromfile(runs[number], dtype=dtype, count=count, offset=offset)
        offsets[number] += read.nbytes
        return np.concatenate([block, read])

    blocks = {number: fill(number, np.zeros(0, dtype=dtype)) for number in range(len(runs))}
    while blocks := {number: block for number, block in blocks.items() if len(block)}:
        limit = min(_key(block[-1]) for block in blocks.values())
        cuts = {number: bisect_right(block, limit, key=_key) for number, block in blocks.items()}
        yield np.concatenate([block[: cuts[number]] for number, block in blocks.items()])
        blocks = {number: fill(number, block[cuts[number] :]) for number, block in blocks.items()}


def _key(window: np.void) -> bytes:
    """Sorts as windows do: their ids in big-endian order."""
    ids = window["ids"]
    return bytes(ids.astype(ids.dtype.newbyteorder(">")).tobytes())


_MOST_RAISED = 1 << 16  # how often the least count is raised by 1 at most
_NGRAMS = 1 << 18  # that are read at once


class NgramFile:
    """The n-grams of one order that are frequent enough so far, in a file."""

    def __init__(self, path: Path, space: IdSpace, order: int, least: int) -> None:
        """least: the least count, in thousandths."""
        self._path, self._least = path, least
        self._dtype = space.windows(order)
        nothing = np.zeros(0, dtype=self._dtype)
        self._held = TokenNgrams(nothing["ids"].reshape(-1, order), nothing["count"])
        self._raised = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
        self._path.unlink(missing_ok=True)

    def add(self, ngrams: TokenNgrams) -> None:
        whole, self._held = join(self._held, ngrams)
        self._write(whole)

    def finish(self) -> NDArray[np.int64]:
        """Returns, by r, how many n-grams need the least count raised by r to be left out."""
        self._write(self._held)
        return self._raised

    def _write(self, ngrams: TokenNgrams) -> None:
        kept = ngrams[ngrams.counts >= self._least]
        above = (kept.counts - self._least) // WEIGHT_UNIT + 1
        above = np.minimum(above, _MOST_RAISED + 1).astype(np.int64)
        self._raised += np.bincount(above, minlength=_MOST_RAISED + 2)
        rows = np.zeros(len(kept), dtype=self._dtype)
        rows["ids"], rows["count"] = kept.ids, kept.counts
        with writing_to(self._path, REMEDY), self._path.open("ab") as file:
            file.write(rows.view(np.uint8).data)

    def kept(self, more: int, *, whole: bool) -> TokenNgrams:
        """Those that are frequent enough if the least count rises so much. Cost: 30 bytes each."""
        kept = [np.zeros(0, dtype=self._dtype)]
        with self._path.open("rb") as file:
            while data := file.read(_NGRAMS * self._dtype.itemsize):
                rows = np.frombuffer(data, dtype=self._dtype)
                kept.append(rows[rows["count"] >= self._least + more])
        rows = np.concatenate(kept)
        counts = rows["count"] // WEIGHT_UNIT if whole else rows["count"] / WEIGHT_UNIT
        return TokenNgrams(np.ascontiguousarray(rows["ids"]), counts)


_LOCK = "counting.lock"
_REMEDY = "choose folders that you may write to with --output or --workspace"


@contextmanager
def open_workspace(folder: Path | None) -> Iterator[Path]:
    """Make or reopen a workspace, a temporary one for None; it is deleted when the body ends.

    When the body raises or the process dies, the finished files stay.
    Raises: UsageError if another process is using the folder, it holds other files or cannot be
    written to; OutputError for a full disk.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tokalign-") as temporary:
            yield Path(temporary)
        return
    if folder.exists():
        require_workspace(folder, _LOCK)
    with (
        parents_of(folder, remedy=_REMEDY),
        locked(folder / _LOCK, f"building in {folder}", "wait for it or choose another folder"),
    ):
        for unfinished in folder.glob(f"*{TEMPORARY_SUFFIX}"):
            unfinished.unlink()
        is_done = True
        try:
            yield folder
        except BaseException:
            is_done = all(path.name == _LOCK for path in folder.iterdir())
            raise
        finally:
            if is_done:
                remove_workspace(folder)


def remove_workspace(folder: Path) -> None:
    """Delete a workspace; where a link names one, what is in it."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not folder.is_symlink():
        folder.rmdir()


def require_workspace(folder: Path, mark: str) -> None:
    """Raises: UsageError for a folder with files but without `mark`, the first that a build writes:
    it is deleted at the end. What macOS leaves in every folder that it shows does not count."""
    ours = ".DS_Store", "._", f".{mark}."
    with writing_to(folder, _REMEDY):
        names = [path.name for path in folder.iterdir() if not path.name.startswith(ours)]
    if names and mark not in names:
        raise UsageError(
            f"{folder} holds files that no build has left, and a workspace is deleted at the end; "
            "give a folder of its own with --workspace"
        )


def digest(*facts: object) -> str:
    """A name for a file that is made from these facts (texts, numbers, bytes, lists of them)."""
    return sha256(msgpack.packb(facts)).hexdigest()[:32]
