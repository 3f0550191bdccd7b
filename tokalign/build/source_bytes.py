"""The bytes of a corpus file, wherever it lies: read in small steps, hashed and checked.

A location with `://` is a URL that fsspec opens (`hf://datasets/...`, `s3://`, `https://`). All
others are local files, which have to be regular because a corpus is read more than once.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO, Any

from tokalign.errors import CorpusError

_CHUNK = 1 << 16


def is_url(location: str) -> bool:
    """Whether fsspec opens this location."""
    return "://" in location


def size_of(location: str) -> int:
    """The size of a corpus file in bytes; 0 for a URL whose server does not tell.

    Raises: CorpusError for a file that is missing, and for a folder, a pipe or a device.
    """
    if not is_url(location):
        return require_regular(Path(location)).st_size
    return _size_of_url(location)


@cache
def _size_of_url(url: str) -> int:
    with file_system(url) as (system, path):
        return int(system.size(path) or 0)


class SourceBytes:
    """One reading of the bytes of a file, hashed as they lie on disk."""

    def __init__(self, location: str, progress: Callable[[int], None]) -> None:
        """Open nothing yet. progress: called with the number of bytes since the last call."""
        self._location, self._progress = location, progress
        self._digest = hashlib.sha256()
        self.read = 0

    @property
    def sha256(self) -> str:
        """SHA-256 of what has been read so far."""
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """The whole file in pieces of at most 64 KiB.

        Raises: CorpusError for a file that cannot be read or that changes while it is read.
        """
        with _open(self._location) as (file, size):
            while size is None or self.read <= size:
                if not (chunk := self._read(file)):
                    break
                self._digest.update(chunk)
                self.read += len(chunk)
                self._progress(len(chunk))
                yield chunk
        if size is not None and self.read != size:
            raise CorpusError(
                f"it had {size:,} bytes and changed while it was read; "
                "run this again when nothing writes to it",
                path=self._location,
            )

    def _read(self, file: IO[bytes]) -> bytes:
        if is_url(self._location):
            with _naming(self._location):
                return file.read(_CHUNK)
        try:
            return file.read(_CHUNK)
        except OSError as error:
            raise _unreadable(self._location, error) from error


@contextmanager
def _open(location: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file for reading, with its size where that is known."""
    if is_url(location):
        with file_system(location) as (system, path):
            size = system.size(path)
            remote: IO[bytes] = system.open(path, "rb")
        with remote:
            yield remote, size
        return
    with _open_local(Path(location)) as file:
        yield file, os.fstat(file.fileno()).st_size


@contextmanager
def file_system(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it. What it raises in the body is a CorpusError."""
    from fsspec.core import url_to_fs

    with _naming(url):
        yield url_to_fs(url)


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Turn what a file system raises into a CorpusError; each raises errors of its own."""
    try:
        yield
    except CorpusError:
        raise
    except FileNotFoundError as error:
        raise CorpusError("no such file; check the address", path=url) from error
    except ImportError as error:
        raise CorpusError(f"{error}; install what is missing", path=url) from error
    except Exception as error:
        raise CorpusError(
            f"it cannot be read ({type(error).__name__}: {_first_line(error)}); "
            "check the address and the network, or fetch the file and give its path",
            path=url,
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason given")


def require_regular(path: Path) -> os.stat_result:
    """What the system knows of a corpus file.

    Raises: CorpusError for a file that is missing, and for a folder, a pipe or a device.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(str(path), error) from error
    _require_regular(path, state)
    return state


def _require_regular(path: Path, state: os.stat_result) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise CorpusError("it is a folder; give the files in it", path=str(path))
    if not stat.S_ISREG(state.st_mode):
        raise CorpusError(
            "it is a pipe or a device, and a corpus is read more than once; save it to a file",
            path=str(path),
        )


def _open_local(path: Path) -> FileIO:
    """Open a corpus file. One that has become a pipe is refused, not waited for."""
    try:
        file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        raise _unreadable(str(path), error) from error
    _require_regular(path, os.fstat(file.fileno()))
    return file


def _unreadable(location: str, error: OSError) -> CorpusError:
    if isinstance(error, FileNotFoundError):
        return CorpusError("no such file; give an existing corpus file", path=location)
    reason = error.strerror or str(error)
    return CorpusError(
        f"it cannot be read ({reason}); give a file that you may read", path=location
    )
