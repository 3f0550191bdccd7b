"""One document of any kind -> its text, one paragraph per line.

PDFium reads PDF, Resiliparse reads HTML and detects encodings; both are imported when the first
such file is met. Lines that were wrapped at a width are joined: the text of a model has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

from tokalign.build.documents.finding import missing_libraries
from tokalign.errors import CorpusError

LONGEST_TEXT = 20_000_000
"""Characters of text that one document may have: the Bible five times over."""

_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_LEAST_WRAPPED = 40
"""A line shorter than this was not wrapped: verse, a heading, a list."""

_OF_WINDOWS = re.compile(rb"[\x80-\x9f]")
"""Quotation marks and dashes in the encodings of Windows, which others have no text for."""

_MOST_UNREADABLE = 0.01
"""The share of characters; with more, its encoding is not known."""

_HYPHENS = ("\xad", "\ufffe", "\x02")
"""What PDFium and word processors put where a word is divided at the end of a line."""


class UnopenedError(CorpusError):
    """A document that cannot be opened: for want of permission, or of a drive that answers."""


def read_document(path: Path) -> str:
    """The text of a document.

    Raises: UnopenedError; CorpusError for what cannot be understood, has no text, or holds a
        private key; MissingAssetError where the libraries are not installed.
    """
    try:
        data = _read(path)
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise UnopenedError(f"{why}; the document is left out for now", path=str(path)) from error
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        text = "\n".join(_pdf_pages(path, data))
    elif suffix in (".html", ".htm", ".xhtml"):
        text = _html_text(path, data)
    else:
        text = _plain_text(path, data)
    if len(text) > LONGEST_TEXT:
        raise _unread(path, f"it has more than {LONGEST_TEXT:,} characters of text")
    if not text.strip():
        raise _unread(path, "there is no text in it; a scanned page needs text recognition first")
    if _PRIVATE_KEY.search(text):
        raise _unread(path, "it holds a private key")
    # As models write it: letters with their accents, and no half characters.
    return unwrap(normalize("NFC", text.encode("utf-8", "replace").decode()))


def unwrap(text: str) -> str:
    """Join lines that were wrapped at a width: a long line that goes on with a small letter.

    Example: "spotkali się wieczorem na rynku, żeby o tym\\npomówić" is one paragraph.
    """
    paragraphs: list[str] = []
    before = ""
    for line in text.splitlines():
        line = line.strip()
        goes_on = len(before) >= _LEAST_WRAPPED and line[:1].islower()
        if goes_on and before.endswith(_HYPHENS):
            paragraphs[-1] = paragraphs[-1][:-1] + line
        elif goes_on:
            paragraphs[-1] += " " + line
        elif line:
            paragraphs.append(line)
        before = line
    return "\n".join(paragraphs)


def _read(path: Path) -> bytes:
    """The content of a file, which is not opened if a link has taken its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read()


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
    try:
        from resiliparse.parse.encoding import detect_encoding
    except ModuleNotFoundError as error:
        raise missing_libraries() from error
    found = str(detect_encoding(data, from_html_meta=html) or "utf-8")
    if found == "iso8859-13" and _OF_WINDOWS.search(data):
        return "cp1257"
    # The Ukrainian encoding has all letters of the Russian one, and four more.
    return "koi8-u" if found == "koi8-r" else found


def _html_text(path: Path, data: bytes) -> str:
    """What a browser would show, without scripts, styles and what is hidden."""
    encoding = _encoding(data, html=True)
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    try:
        tree = HTMLTree.parse_from_bytes(data, encoding)
        return str(extract_plain_text(tree, alt_texts=False))
    except Exception as error:  # whatever a library finds wrong with a file is about that file
        raise _unread(path, f"Resiliparse says: {error}") from error


def _pdf_pages(path: Path, data: bytes) -> Iterator[str]:
    try:
        import pypdfium2
    except ModuleNotFoundError as error:
        raise missing_libraries() from error
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
