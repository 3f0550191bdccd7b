"""What was read of a user's documents, brought up to date with the folders.

A collection is a folder of its own:

    settings.json           the folders, what to leave out, and the models it is for
    documents.jsonl.zst     the documents as they were read (`kept_documents.py`)
    TARGET.dictionary.tok   a dictionary for each of these models (`learning.py`)
    learn.lock              held by the process that is changing it

The documents are sorted by path, and so are the files found in the folders; an update goes through
both side by side. A file whose size and time are as they were is not opened, and the text of a file
that is gone is not copied. So a collection that was updated many times equals a new one. Only its
owner can enter the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from tokalign.atomic_file import TEMPORARY_SUFFIX, appearing, unwritable, write_file
from tokalign.build.documents.finding import FoundFile, Rules
from tokalign.build.documents.kept_documents import (
    BROKEN,
    Document,
    read_documents,
    writing_documents,
)
from tokalign.build.documents.reading import UnopenedError, read_document
from tokalign.build.file_lock import locked
from tokalign.errors import CorpusError, MissingAssetError
from tokalign.json_text import parse_json
from tokalign.tables.finding import learned_folder

SETTINGS, DOCUMENTS = "settings.json", "documents.jsonl.zst"
_LOCK = "learn.lock"

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a collection is made from, and for.

    folders: absolute paths. targets: names of tokenizers, as the user gave them.
    """

    folders: tuple[str, ...]
    targets: tuple[str, ...]
    rules: Rules = field(default_factory=Rules)
    max_bytes: int | None = None


@dataclass(slots=True)
class Changes:
    """What an update did, in documents.

    texts: those with a text that counts. copies: those with the text of another one, which counts
    once. problems: why some of those read now could not be.
    """

    read: int = 0
    unchanged: int = 0
    forgotten: int = 0
    texts: int = 0
    copies: int = 0
    problems: list[str] = field(default_factory=list)


class Collection:
    """A named collection in the user's data folder; it need not exist yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = learned_folder() / name

    @property
    def exists(self) -> bool:
        """Whether it was learned and not forgotten."""
        return (self.folder / SETTINGS).is_file()

    @property
    def documents_file(self) -> Path:
        """Where the texts are, as a corpus file with the field `text`."""
        return self.folder / DOCUMENTS

    @property
    def tables(self) -> list[Path]:
        """Its dictionaries."""
        return sorted(self.folder.glob("*.dictionary.tok"))

    @property
    def counting(self) -> Path:
        """Where its dictionaries are counted; a killed count is left there."""
        return self.folder / "counting"

    def drop_tables(self) -> None:
        """Delete its dictionaries, and what a killed count has left of one. Only in `changing`."""
        for path in self.tables:
            path.unlink()
        shutil.rmtree(self.counting, ignore_errors=True)

    def settings(self) -> Settings:
        """Raises: CorpusError if they are broken."""
        path = self.folder / SETTINGS
        try:
            value = parse_json(path.read_text("utf-8"))
            rules = value["rules"]
            return Settings(
                folders=tuple(value["folders"]),
                targets=tuple(value["targets"]),
                rules=Rules(exclude=tuple(rules["exclude"]), largest_file=rules["largest_file"]),
                max_bytes=value["max_bytes"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorpusError(BROKEN, path=str(path)) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make the folder, which only its owner may enter, and keep other processes out of it.

        What a killed process has left unfinished is deleted first: it may know documents that are
        gone. Raises: UsageError if another process is changing it; OutputError.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        doing = f"learning {self.name}"
        with locked(self.folder / _LOCK, doing, "wait until it has ended"):
            for unfinished in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
                unfinished.unlink()
            yield

    def save(self, settings: Settings) -> None:
        """Write the settings. Only in `changing`."""
        content = {"format": _FORMAT, **asdict(settings)}
        # ASCII also holds the names of folders that are not UTF-8.
        write_file(self.folder / SETTINGS, json.dumps(content, indent=1) + "\n")

    def require(self) -> None:
        """Raises: MissingAssetError if nothing is known of it, not even by a run that failed."""
        if not self.folder.is_dir():
            raise MissingAssetError(
                f"nothing was learned under the name {self.name}; tokalign learn --list names "
                f"what was, tokalign learn FOLDER --name {self.name} --target NAME learns it"
            )

    def forget(self) -> None:
        """Delete everything that is known of it.

        Raises: as `require`; UsageError while a process is learning it, which would write its
            dictionary afterwards, and for a folder that cannot be deleted.
        """
        self.require()
        with self.changing():
            try:
                shutil.rmtree(self.folder)
            except OSError as error:
                raise unwritable(self.folder, error, "delete that folder by hand") from error

    def update(
        self, found: Iterable[FoundFile], *, progress: Callable[[int], None] = lambda _: None
    ) -> Changes:
        """Read what is new or changed, and drop what is gone. Only in `changing`.

        found: the files that are there, sorted by path. progress: called with the bytes of each
        file that was read or skipped.
        Raises: CorpusError if what was kept is broken; OutputError, UsageError.
        """
        changes = Changes()
        with appearing(self.documents_file) as unfinished, writing_documents(unfinished) as write:
            seen: set[bytes] = set()
            for document in self._current(found, changes, progress):
                digest = sha256(document.text.encode()).digest()
                copy = bool(document.text) and digest in seen
                changes.copies += copy
                changes.texts += bool(document.text) and not copy
                seen.add(digest)
                write(document, copy)
        return changes

    def _current(
        self, found: Iterable[FoundFile], changes: Changes, progress: Callable[[int], None]
    ) -> Iterator[Document]:
        """Every document that is there now, as it was kept or as it is read."""
        kept = read_documents(self.documents_file)
        old = next(kept, None)
        for file in found:
            while old is not None and old.file.path < file.path:
                changes.forgotten += 1
                old = next(kept, None)
            if old is not None and old.file == file:
                changes.unchanged += 1
                yield old
            else:
                document = _read(file, changes)
                if document is not None:
                    yield document
            if old is not None and old.file.path == file.path:
                old = next(kept, None)
            progress(file.bytes)
        changes.forgotten += (old is not None) + sum(1 for _ in kept)


def collections() -> list[Collection]:
    """Everything that was learned, by name."""
    folder = learned_folder()
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [one for one in map(Collection, names) if one.exists]


def _read(file: FoundFile, changes: Changes) -> Document | None:
    """The document, or None for one that cannot be opened, so that the next update tries again."""
    changes.read += 1
    try:
        return Document(file, read_document(Path(file.path)))
    except CorpusError as error:
        changes.problems.append(str(error))
        return None if isinstance(error, UnopenedError) else Document(file, problem=str(error))
