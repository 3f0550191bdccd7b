"""Reading one file of texts: `.txt` (one text per line) or `.jsonl` (one object per line, its text
in one field), plain or compressed (`.gz`, `.zst`).

The file is streamed and hashed as it lies on disk. `Corpus` joins several files into one stream;
`cli/texts.py` takes whole texts out of one.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zstandard

from tokalign.errors import CorpusError

Report = Callable[[CorpusError], None]
"""Takes a line that cannot be read. If it returns, the line is skipped."""

_CHUNK = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS
_BOM = b"\xef\xbb\xbf"


def refuse(error: CorpusError) -> None:
    """The strictest `Report`: raise the error."""
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """What was read from one file. The same file has the same stamp in any folder, at any time.

    bytes, sha256: of the file as it lies on disk (compressed, where it is).
    text_bytes: after decompression.
    lines: paragraphs read from it; skipped: lines that could not be read and were left out.
    weight: how many times each occurrence in it counts.
    """

    name: str
    weight: float
    bytes: int
    sha256: str
    text_bytes: int
    lines: int
    skipped: int


class TextFile:
    """One reading of one file. The stamp is complete when the texts or paragraphs are exhausted."""

    def __init__(
        self,
        path: Path,
        *,
        field: str = "text",
        report: Report = refuse,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Name the file; nothing is read yet.

        field: where a `.jsonl` object has its text. report: called with each line that cannot be
        read. progress: called with the number of bytes read from disk since the last call.
        """
        self._path, self._field = path, field
        self._report, self._progress = report, progress
        self._digest = hashlib.sha256()
        self._bytes = self._text_bytes = self._lines = self._skipped = 0
        self._seen_object = False

    def stamp(self, weight: float = 1.0) -> FileStamp:
        """What has been read so far."""
        return FileStamp(
            name=self._path.name,
            weight=weight,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
            text_bytes=self._text_bytes,
            lines=self._lines,
            skipped=self._skipped,
        )

    def paragraphs(self) -> Iterator[str]:
        """The lines of all texts, without line ends; empty ones are left out. See `texts`."""
        for text in self.texts():
            for paragraph in text.split("\n"):
                if paragraph and not paragraph.isspace():
                    self._lines += 1
                    yield paragraph.removesuffix("\r")

    def texts(self) -> Iterator[str]:
        """One text per line or object; some may be empty.

        Raises: CorpusError for a damaged archive, and for a first object without the field.
        """
        plain = self._path.with_suffix("") if self._path.suffix in _DECOMPRESSORS else self._path
        parse = self._parse_object if plain.suffix == ".jsonl" else bytes.decode
        for number, line in enumerate(self._raw_lines(), 1):
            try:
                text = parse(line.removeprefix(_BOM) if number == 1 else line)
            except ValueError as error:
                self._skipped += 1
                self._report(CorpusError(_reason(error), path=str(self._path), line=number))
                continue
            yield text

    def _parse_object(self, line: bytes) -> str:
        if not line.strip():
            return ""
        record = json.loads(line.decode())
        if not self._seen_object and isinstance(record, dict) and self._field not in record:
            raise self._unknown_field(record)
        self._seen_object = True
        text = record.get(self._field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(f'no text in field "{self._field}" (choose another with --field)')
        text.encode()  # JSON can spell half a surrogate pair, which is no text
        return text

    def _unknown_field(self, record: dict[str, object]) -> CorpusError:
        """A field that the first object lacks is a mistake in the command, not a broken line."""
        fields = ", ".join(record) or "none"
        return CorpusError(
            f'no field "{self._field}"; the fields of the first object are: {fields}; '
            "choose one with --field",
            path=str(self._path),
        )

    def _raw_lines(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._decompressed():
            self._text_bytes += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def _decompressed(self) -> Iterator[bytes]:
        new = _DECOMPRESSORS.get(self._path.suffix)
        if new is None:
            yield from self._chunks()
            return
        try:
            yield from _decompress(self._chunks(), new)
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            raise CorpusError(
                f"the archive is damaged ({error}); fetch it again", path=str(self._path)
            ) from error

    def _chunks(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                self._digest.update(chunk)
                self._bytes += len(chunk)
                self._progress(len(chunk))
                yield chunk


class _Decompressor(Protocol):
    """What the decompressors of zlib and zstandard share. One is good for one stream or frame."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    ".gz": lambda: zlib.decompressobj(_GZIP),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
KINDS = {kind + packed for kind in (".txt", ".jsonl") for packed in ("", *_DECOMPRESSORS)}
"""How the names of corpus files may end."""


def _decompress(chunks: Iterator[bytes], new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Decompress streams or frames that follow each other.

    `zstandard.open` is not used: it reads the first frame only, and like every stream reader of
    zstandard it takes a frame that is cut off for a whole one.
    Raises: EOFError for a frame that is cut off.
    """
    decompressor: _Decompressor | None = None
    for chunk in chunks:
        while chunk:
            decompressor = decompressor or new()
            yield decompressor.decompress(chunk)
            chunk = decompressor.unused_data if decompressor.eof else b""
            if decompressor.eof:
                decompressor = None
    if decompressor is not None:
        raise EOFError("it ends too early")


def _reason(error: ValueError) -> str:
    """What is wrong with a line, in words."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start} of the line"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at column {error.colno} ({error.msg})"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a JSON string"
    return str(error)
