"""The file that holds the texts of a collection: one object per document, sorted by path.

A long text is cut into several objects, so that each fits into a line of a corpus (`LONGEST_LINE`).
The text of a document that counts is in the field `text`, that of a copy of another one in `copy`.
`collection.py` brings the file up to date.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import zstandard

from tokalign.build.documents.finding import FoundFile
from tokalign.errors import CorpusError
from tokalign.json_text import parse_json

BROKEN = "is broken; forget the collection and learn it again: tokalign tables forget NAME"

_PIECE = 1 << 18  # characters of a text in one object, 12 bytes each at most: see LONGEST_LINE


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was when it was read. problem: why it could not be; empty if it was."""

    file: FoundFile
    text: str = ""
    problem: str = ""


def read_documents(path: Path) -> Iterator[Document]:
    """What was written, sorted by path; nothing if there is no file.

    Raises: CorpusError if it is broken.
    """
    if not path.is_file():
        return
    try:
        for _, parts in groupby(_records(path), key=itemgetter("path")):
            yield _document(list(parts))
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(BROKEN, path=str(path)) from error


@contextmanager
def writing_documents(path: Path) -> Iterator[Callable[[Document, bool], None]]:
    """Write documents one after the other, and tell of each whether it is a copy.

    A text is cut at the end of a line where there is one. Only the owner may read the file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        open(descriptor, "wb") as file,
        zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as packed,
    ):

        def write(document: Document, copy: bool) -> None:
            head = asdict(document.file) | {"problem": document.problem}
            for piece in _pieces(document.text):
                texts = {"text": "" if copy else piece, "copy": piece if copy else ""}
                packed.write(json.dumps(head | texts).encode() + b"\n")

        yield write


def _document(parts: list[dict[str, Any]]) -> Document:
    first = parts[0]
    file = FoundFile(first["path"], first["bytes"], first["modified"])
    return Document(file, "".join(part["text"] or part["copy"] for part in parts), first["problem"])


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE:
        end = text.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as unpacked:
        for line in io.TextIOWrapper(unpacked, encoding="utf-8"):
            yield parse_json(line)
