"""From folders of documents to a private dictionary for each of a user's models.

A collection is a folder of its own, which only its owner can enter:

    settings.json           the folders, what to leave out, the models it is for
    TARGET.dictionary.tok   a dictionary for each of these models
    learn.lock              held by the process that is changing it

No text is kept. Where a file is new, changed or gone, all documents are read again and every
dictionary is built anew, so a collection that was updated many times equals a new one. All of them
appear together when each is built; a run that fails leaves what there was. Where no document is
left, the dictionaries are deleted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.runs import digest
from tokalign.build.dictionary.dictionary_bundle import (
    DICTIONARY_BYTES,
    BackoffOptions,
    build_dictionary,
)
from tokalign.build.document_reader import DocumentReader
from tokalign.build.documents import FoundFile, Rules, Skipped, UnopenedError, find_documents
from tokalign.build.never_read import CONTENTS
from tokalign.build.pipeline import build_tables
from tokalign.build.text_files import cut
from tokalign.errors import CorpusError, MissingAssetError, UsageError
from tokalign.locks import locked
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.storage import (
    TEMPORARY_SUFFIX,
    appearing,
    as_path,
    listed,
    parse_json,
    private_folder,
    write_file,
    writing_to,
)
from tokalign.tables.dictionary import LANGUAGE
from tokalign.tables.finding import learned_folder
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SETTINGS, _LOCK = "settings.json", "learn.lock"
_REMEDY = "set XDG_DATA_HOME to a folder that you may write to"
_BROKEN = "is broken; forget the collection and learn it again: tokalign tables forget NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSettings:
    """What a collection is made from, and for. targets: names of tokenizers, as the user gave them.
    seen: a digest of what the dictionaries were built from; empty while that is not known."""

    folders: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)
    max_bytes: int = DICTIONARY_BYTES
    seen: str = ""


@dataclass(slots=True, kw_only=True)
class Learned:
    """What learning did, in documents. copies: those with the text of another one. tables: whether
    each was built anew."""

    skipped: Skipped
    tables: dict[Path, bool]
    read: int = 0
    unchanged: int = 0
    texts: int = 0
    copies: int = 0
    problems: list[str] = field(default_factory=list)


class Collection:
    """A named collection in the user's data folder; it need not exist yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = learned_folder() / name

    @property
    def counting(self) -> Path:
        return self.folder / "counting"

    @property
    def exists(self) -> bool:
        return (self.folder / _SETTINGS).is_file()

    @property
    def tables(self) -> list[Path]:
        return listed(self.folder, "*.dictionary.tok")

    def settings(self) -> CollectionSettings:
        """The saved settings, or the default ones. Raises: CorpusError if they are broken."""
        path = self.folder / _SETTINGS
        if not self.exists:
            return CollectionSettings()
        try:
            return msgspec.convert(parse_json(path.read_text("utf-8")), CollectionSettings)
        except (OSError, ValueError) as error:
            raise CorpusError(_BROKEN, path=str(path)) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make the folder, which only its owner may enter, and keep other processes out of it. What
        a killed one has left is deleted. Raises: UsageError if another one has it; OutputError."""
        with writing_to(self.folder, _REMEDY):
            private_folder(self.folder)
        with locked(self.folder / _LOCK, f"learning {self.name}"):
            for unfinished in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
                unfinished.unlink()
            shutil.rmtree(self.counting, ignore_errors=True)
            yield

    def save(self, settings: CollectionSettings) -> None:
        """Write the settings; only in `changing`."""
        # ASCII also holds the names of folders that are not UTF-8.
        write_file(self.folder / _SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")

    def require(self) -> None:
        """Raises: MissingAssetError if nothing is known of it, not even by a run that failed."""
        if not self.folder.is_dir():
            raise MissingAssetError(
                f"nothing was learned under the name {self.name}; tokalign learn --list names "
                f"what was, tokalign learn FOLDER --name {self.name} --target NAME learns it"
            )

    def forget(self) -> None:
        """Delete everything that is known of it. Raises: as `require`; UsageError while it is being
        learned, or if it cannot be deleted."""
        self.require()
        with self.changing(), writing_to(self.folder, "delete that folder by hand"):
            shutil.rmtree(self.folder)


def collections() -> list[Collection]:
    """Everything that was learned, by name."""
    folder = learned_folder()
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [collection for collection in map(Collection, names) if collection.exists]


def learn(
    name: str,
    *,
    folders: Sequence[Path] = (),
    targets: Sequence[str] = (),
    exclude: Sequence[str] | None = None,
    max_bytes: int | None = None,
    trust_remote_code: bool = False,
    stage: Stage = silent,
) -> Learned:
    """Bring the dictionaries of a collection up to date with its folders.

    folders: replace those it had. targets: are added to those it has. exclude: as in `Rules`. What
    is not given stays as it was. trust_remote_code: as in `resolve_tokenizer`.
    Raises: UsageError for a wrong name, a missing folder or target, or while another process
    learns; MissingAssetError for what is not there; CorpusError if there is no text at all.
    """
    collection = Collection(check_name(name))
    known = collection.settings()
    settings = CollectionSettings(
        folders=tuple(str(folder.absolute()) for folder in folders) or known.folders,
        targets=tuple(dict.fromkeys((*known.targets, *map(_lasting, targets)))),
        rules=known.rules if exclude is None else Rules(exclude=tuple(exclude)),
        max_bytes=max_bytes or known.max_bytes,
    )
    for kind, values in (("FOLDER", settings.folders), ("--target NAME", settings.targets)):
        if not values:
            raise UsageError(
                f"nothing was learned under the name {name} yet; give a {kind}, as in: "
                f"tokalign learn FOLDER --name {name} --target NAME"
            )
    try:
        models = _resolve(settings.targets, trust_remote_code=trust_remote_code)
    except MissingAssetError as error:
        if targets:
            raise
        raise MissingAssetError(
            f"{error}; {name} was learned for it: to leave it out, give tokalign tables forget "
            f"{name}, and learn again for the others"
        ) from error
    documents, skipped = find_documents([*map(Path, settings.folders)], settings.rules)
    seen = digest(
        [[os.fsencode(file.path), file.bytes, file.modified] for file in documents],
        [[slug, tokenizer.fingerprint] for slug, tokenizer in models.items()],
        settings.max_bytes,
        CONTENTS,
    )
    tables = {collection.folder / f"{slug}.dictionary.tok": models[slug] for slug in models}
    with collection.changing():
        is_new = known.seen != seen or not all(path.is_file() for path in tables)
        learned = Learned(skipped=skipped, tables=dict.fromkeys(tables, is_new))
        learned.unchanged = 0 if is_new else len(documents)
        if not is_new or _build(collection, settings, tables, documents, learned, stage):
            collection.save(replace(settings, seen=seen))
    return learned


def _build(
    collection: Collection,
    settings: CollectionSettings,
    tables: Mapping[Path, Tokenizer[TargetId]],
    documents: Sequence[FoundFile],
    learned: Learned,
    stage: Stage,
) -> bool:
    """Read all documents, build all dictionaries, then keep them and the settings; returns whether
    each document could be opened."""
    texts = collection.counting / "documents.txt"
    recipe = partial(
        build_dictionary,
        options=BackoffOptions(
            max_bytes=settings.max_bytes, workspace=collection.counting / "workspace"
        ),
        language=collection.name,
    )
    collection.counting.mkdir()
    try:
        size = sum(file.bytes for file in documents)
        with stage(size or 1, "Reading documents", "bytes") as advance:
            complete = _read_all(documents, texts, learned, advance)
        if not learned.texts:
            for path in collection.tables if complete else ():
                path.unlink()
            raise CorpusError(
                f"there is no document with text in {', '.join(settings.folders)}, so nothing is "
                "learned; give a folder with text, Markdown, HTML or PDF files"
            )
        built = {collection.counting / path.name: path for path in tables}
        builders = {made: partial(recipe, tables[path]) for made, path in built.items()}
        build_tables(Corpus([texts], private=True), builders, stage, remedy=_REMEDY)
        collection.save(settings)  # if this is killed, the next run does not take them for new
        for stale in {*collection.tables} - {*tables}:
            stale.unlink()
        for made, path in built.items():
            made.replace(path)
    finally:
        shutil.rmtree(collection.counting)
    return complete


def _read_all(
    documents: Sequence[FoundFile], texts: Path, learned: Learned, progress: Callable[[int], None]
) -> bool:
    """Write each text once to a corpus file; returns whether all documents could be opened."""
    complete, seen = True, set[bytes]()
    with (
        DocumentReader() as read,
        appearing(texts, remedy=_REMEDY, sync=False) as unfinished,
        unfinished.open("w", encoding="utf-8") as file,
    ):
        for document in documents:
            learned.read += 1
            try:
                text = read(Path(document.path))
            except CorpusError as error:
                learned.problems.append(str(error))
                complete = complete and not isinstance(error, UnopenedError)
                continue
            finally:
                progress(document.bytes)
            content = sha256(text.encode()).digest()
            if content in seen:
                learned.copies += 1
                continue
            seen.add(content)
            learned.texts += 1
            for line in text.split("\n"):
                file.writelines(f"{part}\n" for part in cut(line))
    return complete


def check_name(name: str) -> str:
    """A name that a folder and a dictionary can have. Raises: UsageError."""
    if not LANGUAGE.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a collection; use at most 64 of a-z, A-Z, 0-9, - and _, as in "
            "notes"
        )
    return name


def _lasting(target: str) -> str:
    """The name of a tokenizer, a path as an absolute one: the next run may be anywhere."""
    path = as_path(target)
    return str(path.absolute()) if os.path.exists(path) else target


def _resolve(targets: Sequence[str], *, trust_remote_code: bool) -> dict[str, Tokenizer[TargetId]]:
    models: dict[str, Tokenizer[TargetId]] = {}
    for target in targets:
        resolved: Resolved[TargetId] = resolve_tokenizer(
            target, trust_remote_code=trust_remote_code
        )
        if resolved.slug in models:
            raise UsageError(
                f"two models are called {resolved.slug}; rename the folder {target}, or forget the "
                "collection and learn it for one of them"
            )
        models[resolved.slug] = resolved.tokenizer
    return models
