"""Where a corpus comes from: files, folders, quoted globs, standard input and URLs.

`find_sources` turns what a user names into `Source`s. How the bytes of one are read:
`source_bytes.py`; what they mean: `text_files.py`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tokalign.arguments import is_text
from tokalign.build.packings import PACKINGS
from tokalign.build.source_bytes import file_system, is_url, size_of
from tokalign.errors import CorpusError

KINDS = {kind + packed for kind in (".txt", ".jsonl") for packed in ("", *PACKINGS)} | {".parquet"}
"""How the names of corpus files may end."""

STDIN = "-"
_MAGIC = "*?["
_MAGIC_IN_URLS = "*["  # a question mark begins the query of a URL


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a corpus.

    name: what stamps and weights call it; the same wherever the corpus lies.
    location: a path, or a URL that fsspec knows.
    """

    name: str
    location: str

    @classmethod
    def of_path(cls, path: Path) -> Source:
        """A local file under its own name."""
        return cls(path.name, str(path))

    @property
    def kind(self) -> str:
        """How the name ends, without its packing: `.txt`, `.jsonl` or `.parquet`."""
        name = PurePosixPath(self.name)
        return name.with_suffix("").suffix if name.suffix in PACKINGS else name.suffix

    def require(self) -> int:
        """Check that the file can be a part of a corpus, and return its size in bytes.

        Raises: CorpusError for a file of another kind, a missing one, a folder, a pipe, a device,
            and for a name that no table can hold.
        """
        if not is_text(self.name):
            raise CorpusError("its name is not UTF-8; rename it", path=self.location)
        if not any(self.name.endswith(kind) for kind in KINDS):
            raise CorpusError(
                f"not a kind of corpus file; give one of {', '.join(sorted(KINDS))}",
                path=self.location,
            )
        return size_of(self.location)


def find_sources(
    names: Sequence[str],
    *,
    stdin: Callable[[], Path] | None = None,
    note: Callable[[str], object] = lambda _line: None,
) -> list[Source]:
    """The corpus files that are meant by what a user gave, in that order.

    names: files, folders (every corpus file in them, at any depth), globs in quotation marks, URLs
    of any of these, and `-`. In a folder or under a glob a file is named by its path from there.
    A file that is meant more than once is one source, under the first of its names. Links and
    copies are files of their own.
    stdin: puts what stands on standard input into a file; None where that is no corpus.
    note: told once if files are meant more than once.
    Raises: CorpusError for a folder or a glob without corpus files, and for a URL that cannot be
    listed.
    """
    found = [source for name in dict.fromkeys(names) for source in _find(name, stdin)]
    sources: dict[str, Source] = {}
    for source in found:
        sources.setdefault(_place(source), source)
    again = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    again += [source.location for source in found if sources[_place(source)] is not source]
    if again:
        more = f" and {len(again) - 1:,} more" if len(again) > 1 else ""
        note(f"{again[0]}{more}: given more than once, and counted once (--weight counts more)")
    return list(sources.values())


def _place(source: Source) -> str:
    """Where a source lies: one text for every way to write its path.

    Links to folders are followed. The file itself may be a link: then it is another file than the
    one it leads to, so that a text can be counted several times on purpose.
    """
    if is_url(source.location):
        return source.location
    folder, name = os.path.split(source.location)
    return os.path.join(os.path.realpath(folder), name)


def _find(name: str, stdin: Callable[[], Path] | None) -> list[Source]:
    if not name:
        raise CorpusError("the name of a corpus file is empty; give a file or a folder")
    if name == STDIN:
        if stdin is None:
            raise CorpusError("standard input cannot be read here; save it to a file", path=name)
        return [Source.of_path(stdin())]
    if is_url(name):
        return _find_remote(name)
    path = Path(name)
    if path.is_dir():
        files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        return _in_folder(name, {file: str(path / file) for file in files})
    if any(c in name for c in _MAGIC) and not path.exists():
        found = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
        return _under_glob(name, found)
    return [Source.of_path(path)]


def _find_remote(url: str) -> list[Source]:
    with file_system(url) as (system, path):
        if any(c in path for c in _MAGIC_IN_URLS):
            found = sorted(system.unstrip_protocol(file) for file in system.glob(path))
            return _under_glob(system.unstrip_protocol(path), found)
        if system.isdir(path):
            folder = system.unstrip_protocol(path)
            found = sorted(system.unstrip_protocol(file) for file in system.find(path))
            return _in_folder(folder, {_relative(file, folder): file for file in found})
    return [Source(PurePosixPath(path.partition("?")[0]).name, url)]


def _in_folder(folder: str, found: Mapping[str, str]) -> list[Source]:
    """The corpus files among those found: path in the folder -> location."""
    known = [
        Source(name, location)
        for name, location in found.items()
        if name.endswith(tuple(KINDS)) and not _is_hidden(name)
    ]
    if not known:
        raise CorpusError(
            f"there is no corpus file in this folder ({len(found):,} files of other kinds); "
            f"give a folder with {', '.join(sorted(KINDS))}",
            path=folder,
        )
    return known


def _under_glob(pattern: str, found: Sequence[str]) -> list[Source]:
    if not found:
        raise CorpusError("no file matches this pattern; check it with ls", path=pattern)
    fixed = pattern[: min(pattern.find(c) for c in _MAGIC if c in pattern)]
    return [Source(_relative(file, fixed.rpartition("/")[0]), file) for file in found]


def _relative(file: str, folder: str) -> str:
    return file.removeprefix(folder).lstrip("/")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
