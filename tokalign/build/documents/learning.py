"""From folders of documents to a private dictionary: update the collection, rebuild what is stale.

The header of a dictionary says which texts it was built from, and so whether it is stale. A stale
one is overwritten and no copy of it is kept, because it may know documents that are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokalign.arguments import as_path
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import (
    DICTIONARY_BYTES,
    BackoffOptions,
    build_dictionary,
)
from tokalign.build.documents.collection import Changes, Collection, Settings
from tokalign.build.documents.finding import Left, find_documents
from tokalign.build.stages import Stage, silent
from tokalign.errors import BundleError, CorpusError, MissingAssetError, UsageError
from tokalign.names.registry import Resolved, resolve_tokenizer
from tokalign.tables.bundle import read_header, write_bundle
from tokalign.tables.dictionary import LANGUAGE
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What learning did. tables: file -> whether it was built anew."""

    changes: Changes
    left: Left
    tables: dict[Path, bool]
    text_bytes: int


class PrivateCorpus(Corpus):
    """A corpus whose stamp marks every table that is built from it as private."""

    @property
    def stamp(self) -> dict[str, Any]:
        """See `Corpus`."""
        files = super().stamp.get("files", [])
        return {"files": [{**file, "private": True} for file in files]}


def learn(
    name: str,
    *,
    folders: Sequence[Path] = (),
    targets: Sequence[str] = (),
    exclude: Sequence[str] | None = None,
    largest_file: int | None = None,
    max_bytes: int | None = None,
    stage: Stage = silent,
) -> Learned:
    """Bring a collection up to date with its folders, and its dictionaries with the collection.

    folders: replace those it had. targets: are added to those it has. exclude, largest_file: as in
    `Rules`; max_bytes: of each dictionary's file. What is not given stays as it was.
    Raises: UsageError for a name that no folder can have, where a folder or a target has to be
        given, or while another process learns under this name; MissingAssetError for a folder,
        tokenizer or library that is not there; CorpusError if there is no text at all.
    """
    collection = Collection(check_name(name))
    settings = _settings(collection, folders, targets, exclude, largest_file, max_bytes)
    models = _resolve(settings.targets)
    found, left = find_documents([Path(folder) for folder in settings.folders], settings.rules)
    with collection.changing():
        collection.save(settings)
        with stage(sum(file.bytes for file in found) or 1, "Reading documents") as advance:
            changes = collection.update(found, progress=advance)
        if not changes.texts:
            collection.drop_tables()
            raise CorpusError(
                f"there is no document with text in {', '.join(settings.folders)}, so there is no "
                "dictionary; give a folder with text, Markdown, HTML or PDF files"
            )
        options = BackoffOptions(
            max_bytes=settings.max_bytes or DICTIONARY_BYTES, workspace=collection.counting
        )
        corpus = PrivateCorpus([collection.documents_file])
        tables = {
            collection.folder / f"{slug}.dictionary.tok": _bring_up_to_date(
                collection, slug, model, corpus, options, stage
            )
            for slug, model in models.items()
        }
    return Learned(changes=changes, left=left, tables=tables, text_bytes=corpus.text_bytes)


def check_name(name: str) -> str:
    """A name that a folder and a dictionary can have. Raises: UsageError."""
    if not LANGUAGE.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a collection; use at most 64 letters, digits, - and _, as in "
            "notes"
        )
    return name


def _settings(
    collection: Collection,
    folders: Sequence[Path],
    targets: Sequence[str],
    exclude: Sequence[str] | None,
    largest_file: int | None,
    max_bytes: int | None,
) -> Settings:
    """What the collection had, with what is given in its place."""
    known = collection.settings() if collection.exists else Settings(folders=(), targets=())
    rules = known.rules
    if exclude is not None:
        rules = replace(rules, exclude=tuple(exclude))
    if largest_file is not None:
        rules = replace(rules, largest_file=largest_file)
    settings = Settings(
        folders=tuple(str(folder.absolute()) for folder in folders) or known.folders,
        targets=tuple(dict.fromkeys((*known.targets, *map(_lasting, targets)))),
        rules=rules,
        max_bytes=max_bytes or known.max_bytes,
    )
    for kind, values in (("FOLDER", settings.folders), ("--target NAME", settings.targets)):
        if not values:
            raise UsageError(
                f"nothing was learned under the name {collection.name} yet; give a {kind}, as in: "
                f"tokalign learn FOLDER --name {collection.name} --target NAME"
            )
    return settings


def _lasting(target: str) -> str:
    """The name of a tokenizer, a path as an absolute one: the next run may be anywhere."""
    path = as_path(target)
    return str(path.absolute()) if path.exists() else target


def _resolve(targets: Sequence[str]) -> dict[str, Resolved[TargetId]]:
    """The tokenizers by the names of their tables."""
    models: dict[str, Resolved[TargetId]] = {}
    for target in targets:
        model: Resolved[TargetId] = resolve_tokenizer(target)
        if model.slug in models:
            raise UsageError(
                f"two models are called {model.slug}; rename the folder {target}, or forget the "
                "collection and learn it for one of them"
            )
        models[model.slug] = model
    return models


def _bring_up_to_date(
    collection: Collection,
    slug: str,
    model: Resolved[TargetId],
    corpus: Corpus,
    options: BackoffOptions,
    stage: Stage,
) -> bool:
    """Build the dictionary of one model unless it is up to date; returns whether it was built."""
    path = collection.folder / f"{slug}.dictionary.tok"
    fingerprint = model.tokenizer.fingerprint
    if _described(path) == (fingerprint, options.max_bytes, _digest(collection.documents_file)):
        return False
    path.unlink(missing_ok=True)  # if building fails, what is gone is forgotten all the same
    bundle = build_dictionary(
        model.tokenizer, corpus, options, language=collection.name, stage=stage
    )
    write_bundle(path, bundle)
    return True


def _described(path: Path) -> tuple[str, int, str] | None:
    """What a table was built for and from: fingerprint, largest size, digest of the documents."""
    with suppress(BundleError, MissingAssetError, KeyError, IndexError, TypeError):
        header = read_header(path)
        documents = header.corpus["files"][0]["sha256"]
        return header.fingerprints["target"], header.parameters["max_bytes"], documents
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
