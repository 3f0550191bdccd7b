"""Files: what comes with tokalign, what it caches, and writing one whole or not at all.

What comes with tokalign besides its code (tables, small corpora, prompts) lies at the top level
of the repository, and in a wheel under `data` (see `pyproject.toml`). A file is written under a
temporary name in the same folder, synced and renamed. Pipes and devices are refused.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import UnsupportedOperation
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from threading import get_ident
from time import time
from typing import Any, BinaryIO

from platformdirs import user_cache_path

from tokalign.errors import MissingAssetError, OutputError, TokalignError, UsageError, shown_path

FilePath = str | PathLike[str]

CORPORA = "corpora"
TABLES = "tables"
PROMPTS = "prompts"

ENGLISH, POLISH = "en", "pl"
LANGUAGES = ("cs", ENGLISH, "hu", "lt", POLISH, "sk", "uk")
"""Those that a sample text and prompts come in."""

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "data"


def shipped(name: str) -> Path:
    """The path of a file or folder that comes with tokalign. Raises: MissingAssetError."""
    path = (_INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent) / name
    if not path.exists():
        raise MissingAssetError(
            f"{path}, which comes with tokalign, is missing; "
            "install tokalign again from its folder or wheel"
        )
    return path


def sample_text(language: str) -> Path:
    """Paragraphs of many kinds in a language, one per line: a small corpus in Polish, 24 in others.
    Raises: UsageError for a language that none comes in."""
    _require(language, "sample text", "give a FILE of your own")
    return shipped(f"{CORPORA}/{language}-mini.txt")


def prompts(language: str, *, instead: str = "FILE arguments") -> Path:
    """A folder with `encyclopedic.txt`, `instructions.txt` and `questions.txt` in a language.
    Raises: UsageError, with what is possible `instead`, for a language that none come in."""
    _require(language, "prompts", f"give your own with {instead}")
    return shipped(PROMPTS if language == POLISH else f"{PROMPTS}/{language}")


def _require(language: str, what: str, remedy: str) -> None:
    if language not in LANGUAGES:
        raise UsageError(
            f"tokalign comes with no {what} in language {shown_path(language)}, only in "
            f"{', '.join(LANGUAGES)}; {remedy}"
        )


def cache_folder() -> Path:
    """$TOKALIGN_CACHE, else ~/Library/Caches/tokalign (macOS) or $XDG_CACHE_HOME/tokalign."""
    chosen = os.environ.get("TOKALIGN_CACHE")
    return as_path(chosen) if chosen else user_cache_path("tokalign", appauthor=False)


def contexts_folder() -> Path:
    """Where contexts of earlier requests are, a folder for each owner: in the user's cache."""
    return cache_folder() / "contexts"


def as_path(name: str | PathLike[str]) -> Path:
    """A path as typed, with `~` and `~USER` expanded. Raises: UsageError for an empty one."""
    if not os.fspath(name):
        raise UsageError("a name or path is empty; give one, or . for the current folder")
    if "\0" in os.fspath(name):
        raise UsageError(f"{shown_path(name)} has a NUL, which no path can have; leave it out")
    return Path(os.path.expanduser(name))  # `Path.expanduser` raises RuntimeError


def listed(folder: Path, *patterns: str) -> list[Path]:
    """The files and folders like each of these patterns in turn, those of one sorted; none for what
    is no folder.

    Those with hidden names are left out: on some disks macOS adds `._NAME` to every NAME.
    """
    paths = list[Path]()
    for pattern in patterns:
        with suppress(OSError):  # of a name that is too long
            paths += sorted(path for path in folder.glob(pattern) if path.name[:1] != ".")
    return paths


@contextmanager
def open_regular(path: FilePath, *, links: bool = True) -> Iterator[BinaryIO]:
    """Open a file that comes from somebody else for reading; a pipe or a device is not waited for.

    links: whether the path may be a symbolic link.
    Raises: OSError; IsADirectoryError for a folder, io.UnsupportedOperation for a pipe or a device.
    """
    flags = os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnsupportedOperation("it is a pipe or a device")
        yield file


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, but raises a ValueError for JSON that is nested too deeply, too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


FileState = tuple[int, ...]


def file_state(path: Path) -> FileState | None:
    """What differs for a file that was changed or replaced; None if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a ValueError for a name that no file can have
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


TEMPORARY_SUFFIX = ".partial"
"""How the temporary names end. Only a killed process leaves such a file."""

_REMEDY = "choose a folder that exists and that you may write to"
_ABANDONED = 60.0
"""Seconds after which an unfinished file is taken for one that a killed process has left."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a disk says that is full or broken."""


def write_file(
    path: Path, content: str | bytes, *, parents: bool = False, remedy: str = _REMEDY
) -> None:
    """Write bytes as they are, or text as UTF-8. parents: make the folders that are missing.
    Raises: UsageError with the remedy; OutputError for a disk that is full or broken."""
    data = content.encode() if isinstance(content, str) else content
    with appearing(path, parents=parents, remedy=remedy) as temporary:
        temporary.write_bytes(data)


@contextmanager
def appearing(
    path: Path, *, parents: bool = False, remedy: str = _REMEDY, sync: bool = True
) -> Iterator[Path]:
    """Give a temporary path; what the body writes there appears at `path` when the body ends.

    Every OSError in the body is taken for a failed write. parents, remedy, errors: see
    `write_file`.
    sync: wait until the content is on the disk. Without it, a power cut can leave a part of the
    file, which its readers have to notice.
    """
    writer = f"{os.getpid()}-{get_ident()}"  # threads may write the same file, too
    temporary = path.parent / f".{path.name}.{writer}{TEMPORARY_SUFFIX}"  # `.` has no name
    with parents_of(path, remedy=remedy) if parents else nullcontext(), writing_to(path, remedy):
        try:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise OSError("it is not a regular file")
            yield temporary
            if sync:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def parents_of(path: Path, *, remedy: str = _REMEDY) -> Iterator[None]:
    """Make the folders that a path lies in; those that stay empty are deleted again. Raises: as
    `write_file`."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        with writing_to(path, remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter, and clear what killed processes left in it.
    Raises: OSError, also for a folder of another user, or a link to one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(0, "it is not a folder of this user")
    folder.chmod(0o700)
    for unfinished in folder.glob(".*"):
        with suppress(OSError):  # another process may have cleared it, or finished it
            if time() - unfinished.stat().st_mtime > _ABANDONED:
                unfinished.unlink()


def require_writable(path: Path, *, parents: bool = False, remedy: str = _REMEDY) -> None:
    """Check before long work that its result can be written here. Raises: as `write_file`."""
    folders = path.absolute().parents
    folder = next(filter(Path.exists, folders)) if parents else folders[0]
    with writing_to(path, remedy):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        TemporaryFile(dir=folder).close()


def is_replaceable(path: Path, mark: str) -> bool:
    """Whether a file may be written here: there is none, or one with this mark of its kind."""
    try:
        with open_regular(path) as file:
            begin = file.read(1 << 12)
    except OSError as error:  # what is no file is refused where it would be written
        return error.errno != errno.EACCES
    return not begin or mark.encode() in begin


def unwritable(path: Path, error: OSError, remedy: str = _REMEDY) -> TokalignError:
    """Why a path cannot be written: OutputError for the disk, else UsageError. remedy: besides
    making room."""
    problem = f"{path} cannot be written ({error.strerror or error})"
    if error.errno in DISK_ERRORS:
        return OutputError(f"{problem}; make room on that disk, or {remedy}")
    return UsageError(f"{problem}; {remedy}")


@contextmanager
def writing_to(path: Path, remedy: str = _REMEDY) -> Iterator[None]:
    """Raise an OSError of the body as `unwritable` says it."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, remedy) from error
