"""A user's documents: which files of a folder are read, and the text of each.

Only kinds of files that hold prose are read. What is hidden, belongs to programs or is named like a
secret is left out, and links are not followed. Nothing here opens a connection.

A text has one paragraph per line. PDFium reads PDF, Resiliparse reads HTML and detects encodings;
both are imported when the first such file is met.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from tokalign.build.never_read import NAMES, key_in
from tokalign.build.text_files import HTML
from tokalign.errors import CorpusError, MissingAssetError, UsageError
from tokalign.installation import needing
from tokalign.storage import open_regular

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

KINDS = (".txt", ".text", ".md", ".markdown", ".rst", ".html", ".htm", ".xhtml", ".pdf")
"""How the names of documents end, in any case."""

LARGEST_FILE = 50 << 20
"""Bytes of the largest document that is read."""

OF_PROGRAMS = (
    "node_modules/",
    "site-packages/",
    "__pycache__/",
    "venv/",
    "*.app/",
    "AppData/",
    "requirements*.txt",
    "CMakeLists.txt",
    "robots.txt",
)
"""What programs keep beside the documents of a person, as patterns of a .gitignore file."""

_LIBRARIES = "reading documents needs libraries that are not installed; install them"


@dataclass(frozen=True, slots=True, order=True)
class FoundFile:
    """A document to read. path: absolute. modified: nanoseconds."""

    path: str
    bytes: int
    modified: int


@dataclass(slots=True)
class Skipped:
    """What is not read: how many files for each reason, and the folders that cannot be read."""

    counts: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is left out besides `OF_PROGRAMS`, `never_read.py` and files above `LARGEST_FILE`.
    exclude: as in .gitignore."""

    exclude: tuple[str, ...] = ()


def find_documents(folders: Sequence[Path], rules: Rules) -> tuple[list[FoundFile], Skipped]:
    """The documents in these folders and the folders in them, sorted by path, each once.

    Raises: MissingAssetError for a folder that is not there; UsageError for a file in its place, a
    pattern that means nothing, or missing libraries.
    """
    spec = _spec(map(_folded, (*OF_PROGRAMS, *NAMES, *rules.exclude)))
    skipped, documents = Skipped(), set[FoundFile]()
    for folder in folders:
        _check_folder(folder)
        root = os.path.abspath(folder)
        for path in _walk(root, spec, skipped):
            file = _consider(path, skipped)
            if file is not None:
                documents.add(file)
    return sorted(documents), skipped


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise MissingAssetError(
            f"{folder} is not there; connect its disk, or name the folders to learn from "
            "(documents of others are forgotten)"
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder that it is in")


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    with needing(_LIBRARIES, extra="documents"):
        from pathspec import GitIgnoreSpec
    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UsageError(
            f"a pattern to exclude means nothing ({error}); write it as in a .gitignore file"
        ) from error


def _folded(name: str) -> str:
    """A name or a pattern in lower case and composed; macOS decomposes the accents of names."""
    return normalize("NFC", name).lower()


def _walk(root: str, spec: GitIgnoreSpec, skipped: Skipped) -> Iterator[str]:
    def report(error: OSError) -> None:
        skipped.unreadable.append(str(error.filename))

    for folder, inner, files in os.walk(root, onerror=report):
        kept = []
        for name in inner:
            path = os.path.join(folder, name)
            # A home on a Mac, or a copy of one; others call a folder of documents so, too.
            is_of_macos = name == "Library" and os.path.isdir(os.path.join(path, "Preferences"))
            if is_of_macos or spec.match_file(_folded(os.path.relpath(path, root)) + "/"):
                skipped.counts["excluded folders"] += 1
            elif os.path.islink(path):
                skipped.counts["links"] += 1
            else:
                kept.append(name)
        inner[:] = kept
        for name in files:
            path = os.path.join(folder, name)
            if spec.match_file(_folded(os.path.relpath(path, root))):
                skipped.counts["excluded files"] += 1
            else:
                yield path


def _consider(path: str, skipped: Skipped) -> FoundFile | None:
    if not path.lower().endswith(KINDS):
        skipped.counts["other kinds"] += 1
        return None
    try:
        facts = os.lstat(path)
    except OSError:
        skipped.unreadable.append(path)
        return None
    if stat.S_ISLNK(facts.st_mode):
        skipped.counts["links"] += 1
    elif not stat.S_ISREG(facts.st_mode):
        skipped.counts["other kinds"] += 1
    elif facts.st_size > LARGEST_FILE:
        skipped.counts["too large"] += 1
    else:
        return FoundFile(path, facts.st_size, facts.st_mtime_ns)
    return None


# -- the text of a document ------------------------------------------------------------------------

LONGEST_TEXT = 20_000_000
"""Characters of text that one document may have."""

_LEAST_WRAPPED = 40  # characters; a shorter line was not wrapped: verse, a heading, a list
_OF_WINDOWS = re.compile(rb"[\x80-\x9f]")  # quotation marks and dashes in encodings of Windows
_MOST_UNREADABLE = 0.01  # of the characters; with more, the encoding is not known
_HYPHENS = ("\xad", "\ufffe", "\x02")  # of PDFium and word processors, at the end of a line


class UnopenedError(CorpusError):
    """A document that cannot be opened now: no permission, or a drive that does not answer."""


def read_document(path: Path) -> str:
    """The text of a document. Raises: UnopenedError; CorpusError for what cannot be understood, has
    no text, or holds a key; MissingAssetError where the libraries are not installed."""
    try:
        with open_regular(path, links=False) as file:
            data = file.read()
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise UnopenedError(f"{why}; the document is left out for now", path=str(path)) from error
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        text = "\n".join(_pdf_pages(path, data))
    elif suffix in (".html", ".htm", ".xhtml") or re.match(HTML, data):
        text = _html_text(path, data)
    else:
        text = _plain_text(path, data)
    if len(text) > LONGEST_TEXT:
        raise _unread(path, f"it has more than {LONGEST_TEXT:,} characters of text")
    if not text.strip():
        remedy = "; a scanned page needs text recognition first" if suffix == ".pdf" else ""
        raise _unread(path, f"there is no text in it{remedy}")
    if key := key_in(text):
        raise _unread(path, f"it holds {key}")
    # As models write it: letters with their accents, and no half characters.
    return unwrap(normalize("NFC", text.encode("utf-8", "replace").decode()))


def unwrap(text: str) -> str:
    r"""Join lines that were wrapped at a width: a long line that goes on with a small letter, as in
    "spotkali się wieczorem na rynku, żeby o tym\npomówić"."""
    paragraphs: list[list[str]] = []
    before = ""
    for line in text.splitlines():
        line = line.strip()
        goes_on = len(before) >= _LEAST_WRAPPED and line[:1].islower()
        if goes_on and before.endswith(_HYPHENS):
            paragraphs[-1][-1] = paragraphs[-1][-1][:-1]
            paragraphs[-1].append(line)
        elif goes_on:
            paragraphs[-1] += " ", line
        elif line:
            paragraphs.append([line])
        before = line
    return "\n".join(map("".join, paragraphs))


def _plain_text(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, in UTF-16 with its mark, or in an encoding that is detected."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise _unread(path, "it is no text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode(_encoding(data), errors="replace")
    if text.count("\ufffd") > _MOST_UNREADABLE * len(text):
        raise _unread(path, "its encoding is not known; save it as UTF-8")
    return text


def _encoding(data: bytes, *, html: bool = False) -> str:
    with needing(_LIBRARIES, extra="documents"):
        from resiliparse.parse.encoding import detect_encoding
    encoding = str(detect_encoding(data, from_html_meta=html) or "utf-8")
    if encoding == "iso8859-13" and _OF_WINDOWS.search(data):
        return "cp1257"
    # The Ukrainian encoding has all letters of the Russian one, and four more.
    return "koi8-u" if encoding == "koi8-r" else encoding


def _html_text(path: Path, data: bytes) -> str:
    encoding = _encoding(data, html=True)
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    try:
        tree = HTMLTree.parse_from_bytes(data, encoding)
        return str(extract_plain_text(tree, alt_texts=False))
    except Exception as error:  # whatever a library finds wrong with a file is about that file
        raise _unread(path, f"Resiliparse says: {error}") from error


def _pdf_pages(path: Path, data: bytes) -> Iterator[str]:
    with needing(_LIBRARIES, extra="documents"):
        import pypdfium2
    try:
        with pypdfium2.PdfDocument(data) as document:
            for page in document:
                text = page.get_textpage()
                yield text.get_text_bounded()
                text.close()
                page.close()
    except pypdfium2.PdfiumError as error:
        raise _unread(path, f"PDFium says: {str(error).rstrip('.')}") from error


def _unread(path: Path, why: str) -> CorpusError:
    return CorpusError(f"{why}; the document is left out", path=str(path))
