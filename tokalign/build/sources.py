"""Where a corpus comes from: files, folders, quoted globs, standard input and URLs.

`find_sources` turns what a user names into `CorpusFile`s, and `CorpusFile.chunks` reads the bytes
of one. A location with `://` is a URL that fsspec opens (`hf://datasets/...`, `s3://`, `https://`).
All others are local files, which have to be regular. `unpack` reads `.gz`, `.zst` and `.xz` in
small steps, so that no archive can fill the memory. What the bytes mean: `text_files.py`.
"""

from __future__ import annotations

import glob
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from io import UnsupportedOperation
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote

import zstandard

from tokalign.errors import CorpusError, is_text
from tokalign.installation import install_line
from tokalign.storage import as_path, open_regular

LARGEST_WINDOW = 1 << 27
"""Bytes of text that an archive may refer back to, all of which are kept in memory. The command
`zstd` has the same limit by default."""

_PIECE = 1 << 18
_GZIP = 16 + zlib.MAX_WBITS
_XZ_MEMORY = LARGEST_WINDOW + (1 << 20)  # the window and the decoder's own state

PACKINGS: dict[str, tuple[Callable[[], Any], int]] = {
    # A byte of deflate is at most 1,032 bytes of text: 16 MB at once.
    ".gz": (lambda: zlib.decompressobj(_GZIP), 1 << 14),
    # The shortest block of zstandard has 4 bytes and is at most 128 KiB of text: 16 MB at once.
    ".zst": (
        lambda: zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj(),
        1 << 9,
    ),
    # Zeros, which LZMA packs best, take one byte in 7,000: 14 MB at once.
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), 1 << 11),
}
"""By suffix: makes a decompressor of one stream, and how many bytes of an archive to give it at
once, which bounds what comes out at once."""

BROKEN = (zlib.error, zstandard.ZstdError, lzma.LZMAError, EOFError)
"""What `unpack` raises for an archive that is damaged or takes too much memory."""

KINDS = tuple(
    sorted([".parquet", *(kind + end for kind in (".txt", ".jsonl") for end in ("", *PACKINGS))])
)
"""How the names of corpus files may end."""

STDIN = "-"
_MAGIC = "*?["
_CHUNK = 1 << 16
_MAGIC_IN_URLS = "*["  # a question mark begins the query of a URL
_ADDRESS = "check the address and the network, or fetch the file and give its path"


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a corpus. name: for stamps and weights. location: a path, or a URL of fsspec.
    typed: what the user calls it, if that is not its location."""

    name: str
    location: str
    typed: str = ""

    @classmethod
    def of_path(cls, path: Path) -> CorpusFile:
        return cls(path.name, str(path))

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.typed or self.location

    @property
    def is_remote(self) -> bool:
        return _is_url(self.location)

    @property
    def kind(self) -> str:
        """How the name ends, without its packing: `.txt`, `.jsonl` or `.parquet`."""
        name = PurePosixPath(self.name)
        return name.with_suffix("").suffix if name.suffix in PACKINGS else name.suffix

    def require(self) -> int:
        """The size in bytes. Raises: CorpusError for what can be no part of a corpus."""
        if not is_text(self.name):
            raise CorpusError("its name is not UTF-8; rename it", path=self.location)
        size = None if self.is_remote else self._local_size()  # first whether it is there
        if not self.name.endswith(KINDS):
            raise CorpusError(
                f"not a kind of corpus file; give one of {', '.join(KINDS)}", path=self.location
            )
        return _size_of_url(self.location) if size is None else size

    def _local_size(self) -> int:
        with open_source(self.location) as (_, size):
            return size or 0

    def chunks(self) -> Iterator[bytes]:
        """The whole file in pieces of at most 64 KiB. Raises: CorpusError, also if it changes."""
        read = 0
        with open_source(self.location) as (file, size):
            while size is None or read <= size:
                if not (chunk := file.read(_CHUNK)):
                    break
                read += len(chunk)
                yield chunk
        if size is not None and read != size:
            raise CorpusError(
                f"it had {size:,} bytes and changed while it was read; "
                "run this again when nothing writes to it",
                path=self.location,
            )

    def digest(self) -> str:
        """Half the SHA-256 of a local file, of nothing for a remote one. Raises: as `chunks`."""
        digest = sha256()
        for chunk in () if self.is_remote else self.chunks():
            digest.update(chunk)
        return digest.hexdigest()[:32]


def find_sources(
    names: Sequence[str],
    *,
    stdin: Callable[[], Path] | None = None,
    note: Callable[[str], object] = lambda _line: None,
) -> list[CorpusFile]:
    """The corpus files that a user named, in that order.

    names: files, folders (every corpus file in them, at any depth), globs in quotation marks, URLs
    of any of these, and `-`. In a folder or under a glob a file is named by its path from there.
    A file that is named twice is one source; links and copies are files of their own.
    stdin: saves standard input to a file; None where it is no corpus.
    Raises: CorpusError for a folder or a glob without corpus files, and for a URL that cannot be
    read.
    """
    named = [source for name in dict.fromkeys(names) for source in _find(name, stdin)]
    sources: dict[str, CorpusFile] = {}
    for source in named:
        sources.setdefault(_place(source), source)
    again = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    again += [source.location for source in named if sources[_place(source)] is not source]
    if again:
        more = f" and {len(again) - 1:,} more" if len(again) > 1 else ""
        note(f"{again[0]}{more}: given more than once, and read once")
    return list(sources.values())


def _place(source: CorpusFile) -> str:
    """One text for every way to write a source's path. Links to folders are followed, a link to a
    file is not: so a text can be counted several times on purpose."""
    if source.is_remote:
        return source.location
    folder, name = os.path.split(source.location)
    return os.path.join(os.path.realpath(folder), name)


def _find(name: str, stdin: Callable[[], Path] | None) -> list[CorpusFile]:
    if not name:
        raise CorpusError("the name of a corpus file is empty; give a file or a folder")
    if name == STDIN:
        if stdin is None:
            raise CorpusError("standard input cannot be read here; save it to a file", path=name)
        saved = stdin()
        return [CorpusFile(saved.name, str(saved), "standard input")]
    if _is_url(name):
        return _find_remote(name)
    path = as_path(name)
    name = str(path)
    if os.path.isdir(path):  # false for a name that is too long, where Path raises
        return _in_folder(name, str(path), map(str, filter(Path.is_file, path.rglob("*"))))
    if any(c in name for c in _MAGIC) and not os.path.exists(path):
        return _under_glob(name, filter(os.path.isfile, glob.glob(name, recursive=True)))
    return [CorpusFile.of_path(path)]


def _find_remote(url: str) -> list[CorpusFile]:
    with _file_system(url) as (system, path):
        whole = system.unstrip_protocol
        if any(c in path for c in _MAGIC_IN_URLS):
            return _under_glob(whole(path), map(whole, system.glob(path)))
        if system.isdir(path):
            return _in_folder(url, whole(path), map(whole, system.find(path)))
    return [CorpusFile(PurePosixPath(_relative(path.partition("?")[0], "")).name, url)]


def _in_folder(typed: str, folder: str, locations: Iterable[str]) -> list[CorpusFile]:
    files = [CorpusFile(_relative(file, folder), file) for file in locations]
    known = [
        file
        for file in files
        if file.name.endswith(KINDS) and not any(part[:1] == "." for part in file.name.split("/"))
    ]
    if not known:
        raise CorpusError(
            f"there is no corpus file in this folder ({len(files):,} files of other kinds); "
            f"give a folder with {', '.join(KINDS)}",
            path=typed,
        )
    return sorted(known, key=lambda file: file.name)


def _under_glob(pattern: str, locations: Iterable[str]) -> list[CorpusFile]:
    fixed = pattern[: min(pattern.find(c) for c in _MAGIC if c in pattern)].rpartition("/")[0]
    files = [CorpusFile(_relative(file, fixed), file) for file in sorted(locations)]
    if not files:
        remedy = _ADDRESS if _is_url(pattern) else "check it with ls"
        raise CorpusError(f"no file matches this pattern; {remedy}", path=pattern)
    return files


def _relative(file: str, folder: str) -> str:
    name = file.removeprefix(f"{folder.rstrip('/')}/")
    return unquote(name) if file.startswith(("http:", "https:")) else name


def _is_url(location: str) -> bool:
    return "://" in location


@cache
def _size_of_url(url: str) -> int:
    """0 where the server does not tell."""
    with _file_system(url) as (system, path):
        return int(system.size(path) or 0)


@contextmanager
def _file_system(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL and the path in it. What it raises in the body is a CorpusError."""
    from fsspec.core import url_to_fs

    options = {}
    if url.startswith("http") and PurePosixPath(url.partition("?")[0]).suffix in PACKINGS:
        # aiohttp would unpack what a server calls packed on the way (`Content-Encoding: gzip`).
        headers = {"Accept-Encoding": "identity"}
        options = {"client_kwargs": {"auto_decompress": False, "headers": headers}}
    with _naming(url):
        yield url_to_fs(url, **options)


@contextmanager
def open_source(location: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file or URL for reading, with its size where that is known. Raises: CorpusError, also
    for an OSError in the body."""
    if _is_url(location):
        with _file_system(location) as (system, path), system.open(path, "rb") as remote:
            yield remote, system.size(path)
        return
    with _naming(location), open_regular(location) as file:
        yield file, os.fstat(file.fileno()).st_size


@contextmanager
def _naming(location: str) -> Iterator[None]:
    """Turn what a file system raises into a CorpusError; remote ones raise errors of their own."""
    try:
        yield
    except CorpusError:
        raise
    except Exception as error:
        why: BaseException = error
        if isinstance(error, FileNotFoundError) and location.startswith("http"):
            # fsspec says of a server that is down, too, that there is no file.
            is_gone = getattr(error.__cause__, "status", None) in (404, 410)
            why = error if is_gone else error.__cause__ or error
        match why:
            case FileNotFoundError():
                problem = "no such file; give an existing one"
            case IsADirectoryError():
                problem = "it is a folder; give the files in it"
            case UnsupportedOperation():
                problem = "it is a pipe or a device; save it to a file"
            case ImportError():
                problem = f"{error}; install what is missing with: {install_line('PACKAGE')}"
            case _:
                reason = getattr(why, "strerror", None) or f"{type(why).__name__}: {why}"
                remedy = _ADDRESS if _is_url(location) else "give a file that you may read"
                problem = f"it cannot be read ({next(iter(reason.splitlines()))}); {remedy}"
        raise CorpusError(problem, path=location) from error


def unpack(chunks: Iterator[bytes], packing: str) -> Iterator[bytes]:
    """Decompress streams or frames that follow each other, in pieces of at most 256 KiB.

    `zstandard.open` reads the first frame only, and takes a frame that is cut off for a whole one.
    Raises: one of `BROKEN`; EOFError for a frame that is cut off.
    """
    new, step = PACKINGS[packing]
    decompressor = None
    for chunk in chunks:
        for start in range(0, len(chunk), step):
            rest = chunk[start : start + step]
            while rest:
                decompressor = decompressor or new()
                text = decompressor.decompress(rest)
                for begin in range(0, len(text), _PIECE):
                    yield text[begin : begin + _PIECE]
                rest = decompressor.unused_data if decompressor.eof else b""
                if decompressor.eof:
                    decompressor = None
    if decompressor is not None:
        raise EOFError("it ends too early")


def why_not_unpacked(error: Exception) -> str:
    """What is wrong with an archive, and what to do, in words."""
    if "too much memory" in str(error) or "Memory usage limit" in str(error):
        return (
            f"unpacking it takes a window of more than {LARGEST_WINDOW >> 20} MiB; "
            "pack it again without --long and --ultra"
        )
    return f"the archive is damaged ({error}); fetch it again"
