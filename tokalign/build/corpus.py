"""Reading a corpus: text files, one paragraph per line, streamed and stamped.

A corpus is `.txt` (one paragraph per line) or `.jsonl` (one object per line, its text in one
field), plain or compressed (`.gz`, `.zst`). It is never whole in memory. While it streams, each
file's bytes are hashed, so that a table can say exactly which text it was built from.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import zstandard

from tokalign.errors import CorpusError

Report = Callable[[CorpusError], None]

_CHUNK = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS


def refuse(error: CorpusError) -> None:
    """The strictest way to report a line that cannot be read: raise the error."""
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """One file as it was read. No folder, no date: the same file anywhere has the same stamp.

    bytes, sha256: of the file as it lies on disk (compressed, where it is).
    text_bytes: after decompression.
    lines: paragraphs read from it; skipped: lines reported as unreadable and left out.
    weight: how often each occurrence in it counts.
    """

    name: str
    weight: float
    bytes: int
    sha256: str
    text_bytes: int
    lines: int
    skipped: int


class Corpus:
    """Text files read as one stream of paragraphs, in the order of their names.

    `lines` may be read several times; `stamp` tells what the last complete reading saw.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        field: str = "text",
        report: Report = refuse,
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Name the files; nothing is read yet.

        field: where a `.jsonl` object has its text.
        report: called with each line that cannot be read; returning from it skips the line.
        weights: file name -> how often each occurrence in it counts, 1 where nothing is said; over
            0 and with at most three decimals.
        Raises: CorpusError for a file that is missing, of an unknown kind, named twice or weighted
            wrongly.
        """
        self._paths = sorted(paths, key=lambda path: path.name)
        self._field, self._report = field, report
        self._stamps: list[FileStamp] = []
        for path in self._paths:
            _check(path)
        names = [path.name for path in self._paths]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise CorpusError(
                "two corpus files have this name, so a stamp cannot tell them apart; rename one",
                path=twice,
            )
        self._weights = {name: weights.get(name, 1.0) for name in names}
        for name, weight in weights.items():
            if name not in self._weights:
                raise CorpusError("a weight for a file that is no part of the corpus", path=name)
            if weight <= 0 or round(weight, 3) != weight:
                raise CorpusError(
                    f"a weight is over 0 and has at most three decimals, not {weight}", path=name
                )

    @property
    def size(self) -> int:
        """Bytes on disk, of all files together."""
        return sum(path.stat().st_size for path in self._paths)

    @property
    def stamp(self) -> dict[str, Any]:
        """What was read, for a bundle's header; empty before the first complete reading."""
        return {"files": [asdict(stamp) for stamp in self._stamps]} if self._stamps else {}

    @property
    def text_bytes(self) -> int:
        """Bytes of text, decompressed, in the last complete reading."""
        return sum(stamp.text_bytes for stamp in self._stamps)

    @property
    def skipped(self) -> int:
        """Lines left out of the last complete reading."""
        return sum(stamp.skipped for stamp in self._stamps)

    def lines(self, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
        """All paragraphs, without line ends; empty ones are left out.

        progress: called with the number of bytes read from disk since the last call.
        Raises: CorpusError for a damaged archive, and at the end when there was nothing to read.
        """
        for _, lines in self.files(progress):
            yield from lines

    def files(
        self, progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[tuple[float, Iterator[str]]]:
        """The weight and the paragraphs of each file, read in this order; else as `lines`."""
        stamps: list[FileStamp] = []
        for path in self._paths:
            file = _File(path, self._field, self._report, progress)
            weight = self._weights[path.name]
            yield weight, file.paragraphs()
            stamps.append(file.stamp(weight))
        if not sum(stamp.lines for stamp in stamps):
            raise CorpusError(
                "the corpus is empty; give at least one file with text",
                path=", ".join(path.name for path in self._paths) or None,
            )
        self._stamps = stamps


class _File:
    """One reading of one file."""

    def __init__(
        self, path: Path, field: str, report: Report, progress: Callable[[int], None]
    ) -> None:
        self._path, self._field = path, field
        self._report, self._progress = report, progress
        self._digest = hashlib.sha256()
        self._bytes = self._text_bytes = self._lines = self._skipped = 0

    def stamp(self, weight: float) -> FileStamp:
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
        plain = self._path.with_suffix("") if self._path.suffix in _DECOMPRESSORS else self._path
        parse = self._parse_object if plain.suffix == ".jsonl" else bytes.decode
        for number, line in enumerate(self._raw_lines(), 1):
            try:
                text = parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            except ValueError as error:
                self._skipped += 1
                self._report(CorpusError(_reason(error), path=str(self._path), line=number))
                continue
            for paragraph in text.split("\n"):
                if paragraph and not paragraph.isspace():
                    self._lines += 1
                    yield paragraph.removesuffix("\r")

    def _parse_object(self, line: bytes) -> str:
        if not line.strip():
            return ""
        record = json.loads(line.decode())
        text = record.get(self._field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(f'no text in field "{self._field}" (choose another with --field)')
        text.encode()  # JSON can spell half a surrogate pair, which is no text
        return text

    def _raw_lines(self) -> Iterator[bytes]:
        rest = b""
        for chunk in self._decompressed():
            self._text_bytes += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def _decompressed(self) -> Iterator[bytes]:
        unpack = _DECOMPRESSORS.get(self._path.suffix)
        if unpack is None:
            yield from self._chunks()
            return
        try:
            yield from _unpacked(self._chunks(), unpack)
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


class _Unpacker(Protocol):
    """What zlib's and zstandard's decompressors have in common; good for one stream or frame."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


_DECOMPRESSORS: dict[str, Callable[[], _Unpacker]] = {
    ".gz": lambda: zlib.decompressobj(_GZIP),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_KINDS = {kind + packed for kind in (".txt", ".jsonl") for packed in ("", *_DECOMPRESSORS)}


def _unpacked(chunks: Iterator[bytes], new: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """Decompress streams or frames that follow each other. Raises: EOFError for a cut one."""
    unpacker: _Unpacker | None = None
    for chunk in chunks:
        while chunk:
            unpacker = unpacker or new()
            yield unpacker.decompress(chunk)
            chunk = unpacker.unused_data if unpacker.eof else b""
            if unpacker.eof:
                unpacker = None
    if unpacker is not None:
        raise EOFError("it ends too early")


def _check(path: Path) -> None:
    if not any(path.name.endswith(kind) for kind in _KINDS):
        raise CorpusError(
            f"not a kind of corpus file; give one of {', '.join(sorted(_KINDS))}", path=str(path)
        )
    if not path.is_file():
        raise CorpusError("no such file; give an existing corpus file", path=str(path))


def _reason(error: ValueError) -> str:
    """What is wrong with a line, in words."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start} of the line"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at column {error.colno} ({error.msg})"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a JSON string"
    return str(error)
