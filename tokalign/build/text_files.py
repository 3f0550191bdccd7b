"""Reading one file of texts: `.txt` (one text per line) or `.jsonl` (one object per line, its text
in one field), plain or compressed (`.gz`, `.zst`).

The file is streamed and hashed as it lies on disk, in bounded memory whatever is in it: a line
longer than `LONGEST_LINE` is reported like any other line that cannot be read, and an archive is
decompressed in small steps. `Corpus` joins several files into one stream; `cli/texts.py` takes
whole texts out of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

import zstandard

from tokalign.errors import CorpusError

Report = Callable[[CorpusError], None]
"""Takes a line that cannot be read. If it returns, the line is skipped."""

LONGEST_LINE = 4 << 20
"""Bytes of a line, or of an object in a `.jsonl` file. A novel has about one million. An object of
JSON takes up to 25 times its bytes in memory while it is read, so this bounds it to 100 MB."""

LARGEST_WINDOW = 1 << 27
"""Bytes of text that a `.zst` archive may refer back to, all of which are kept in memory. More than
that the command `zstd` does not unpack either unless it is told to."""

_CHUNK = 1 << 16
_PIECE = 1 << 18
_GZIP = 16 + zlib.MAX_WBITS
_BOM = b"\xef\xbb\xbf"
_JSON = json.JSONDecoder(parse_int=float)  # as int, Python refuses more than 4,300 digits
_SHOWN_FIELDS, _SHOWN_CHARACTERS = 10, 40


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

        Raises: CorpusError for a file that cannot be opened or that changes while it is read, for
            a damaged archive, and for a first object without the field.
        """
        plain = self._path.with_suffix("") if self._path.suffix in _PACKINGS else self._path
        parse = self._parse_object if plain.suffix == ".jsonl" else bytes.decode
        for number, line in enumerate(self._raw_lines(), 1):
            try:
                text = parse(line.removeprefix(_BOM) if number == 1 else line)
            except (ValueError, RecursionError) as error:
                self._skipped += 1
                why = _WHY_TOO_LONG if line is _TOO_LONG else _reason(error)
                self._report(CorpusError(why, path=str(self._path), line=number))
                continue
            yield text

    def _parse_object(self, line: bytes) -> str:
        if not line.strip():
            return ""
        record = _JSON.decode(line.decode())
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
        names = [name[:_SHOWN_CHARACTERS] for name in record]
        more = [f"and {len(names) - _SHOWN_FIELDS} more"] * (len(names) > _SHOWN_FIELDS)
        fields = ", ".join([*names[:_SHOWN_FIELDS], *more]) or "none"
        return CorpusError(
            f'no field "{self._field}"; the fields of the first object are: {fields}; '
            "choose one with --field",
            path=str(self._path),
        )

    def _raw_lines(self) -> Iterator[bytes]:
        """The lines as they are, with `_TOO_LONG` for each that is longer than `LONGEST_LINE`."""
        begun = bytearray()  # of a line that is too long, one byte more than that
        for piece in self._decompressed():
            self._text_bytes += len(piece)
            first, *lines = piece.split(b"\n")
            begun += first[: LONGEST_LINE + 1 - len(begun)]
            if lines:
                yield _whole(begun)
                begun = bytearray(lines.pop())
                yield from lines
        if begun:
            yield _whole(begun)

    def _decompressed(self) -> Iterator[bytes]:
        """The text in pieces of at most `_PIECE` bytes."""
        packing = _PACKINGS.get(self._path.suffix)
        if packing is None:
            yield from self._chunks()
            return
        try:
            yield from _decompress(self._chunks(), packing)
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            raise CorpusError(_why_not_unpacked(error), path=str(self._path)) from error

    def _chunks(self) -> Iterator[bytes]:
        with _open(self._path) as file:
            size = os.fstat(file.fileno()).st_size
            while self._bytes <= size and (chunk := _read(file, self._path)):
                self._digest.update(chunk)
                self._bytes += len(chunk)
                self._progress(len(chunk))
                yield chunk
        if self._bytes != size:
            raise CorpusError(
                f"it had {size:,} bytes and changed while it was read; "
                "run this again when nothing writes to it",
                path=str(self._path),
            )


def require_regular(path: Path) -> os.stat_result:
    """What the system knows of a corpus file.

    Raises: CorpusError for a file that is missing, and for a folder, a pipe or a device.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    _require_regular(path, state)
    return state


def _require_regular(path: Path, state: os.stat_result) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise CorpusError("it is a folder; give the files in it", path=str(path))
    if not stat.S_ISREG(state.st_mode):
        raise CorpusError(
            "it is a pipe or a device, and a corpus is read more than once; save it to a file",
            path=str(path),
        )


def _open(path: Path) -> FileIO:
    """Open a corpus file. One that has become a pipe is refused, not waited for."""
    try:
        file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        raise _unreadable(path, error) from error
    _require_regular(path, os.fstat(file.fileno()))
    return file


def _read(file: FileIO, path: Path) -> bytes:
    try:
        return file.read(_CHUNK)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CorpusError:
    if isinstance(error, FileNotFoundError):
        return CorpusError("no such file; give an existing corpus file", path=str(path))
    reason = error.strerror or str(error)
    return CorpusError(
        f"it cannot be read ({reason}); give a file that you may read", path=str(path)
    )


class _Decompressor(Protocol):
    """What the decompressors of zlib and zstandard share. One is good for one stream or frame."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Packing:
    """How archives of one kind are unpacked.

    new: makes a decompressor. step: how many bytes of the archive it is given at once. That bounds
    what comes out at once, since neither format can say more than so much in so few bytes.
    """

    new: Callable[[], _Decompressor]
    step: int


_PACKINGS = {
    # A byte of deflate is at most 1,032 bytes of text: 16 MB at once.
    ".gz": _Packing(lambda: zlib.decompressobj(_GZIP), 1 << 14),
    # The shortest block of zstandard has 4 bytes and is at most 128 KiB of text: 16 MB at once.
    ".zst": _Packing(
        lambda: zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj(), 1 << 9
    ),
}
KINDS = {kind + packed for kind in (".txt", ".jsonl") for packed in ("", *_PACKINGS)}
"""How the names of corpus files may end."""


def _decompress(chunks: Iterator[bytes], packing: _Packing) -> Iterator[bytes]:
    """Decompress streams or frames that follow each other, in pieces of at most `_PIECE` bytes.

    `zstandard.open` is not used: it reads the first frame only, and like every stream reader of
    zstandard it takes a frame that is cut off for a whole one.
    Raises: EOFError for a frame that is cut off.
    """
    decompressor: _Decompressor | None = None
    for chunk in chunks:
        for start in range(0, len(chunk), packing.step):
            rest = chunk[start : start + packing.step]
            while rest:
                decompressor = decompressor or packing.new()
                text = decompressor.decompress(rest)
                for begin in range(0, len(text), _PIECE):
                    yield text[begin : begin + _PIECE]
                rest = decompressor.unused_data if decompressor.eof else b""
                if decompressor.eof:
                    decompressor = None
    if decompressor is not None:
        raise EOFError("it ends too early")


def _why_not_unpacked(error: Exception) -> str:
    """What is wrong with an archive, and what to do, in words."""
    if "too much memory" in str(error):  # what zstandard says of a window over its limit
        return (
            f"unpacking it takes a window of more than {LARGEST_WINDOW >> 20} MiB; "
            "pack it again without --long and --ultra"
        )
    return f"the archive is damaged ({error}); fetch it again"


_TOO_LONG = b"\xff too long"  # stands for such a line: it is not UTF-8, so no parser takes it
_WHY_TOO_LONG = (
    f"longer than {LONGEST_LINE >> 20} MiB; break it into lines, or into several objects"
)


def _whole(line: bytearray) -> bytes:
    return _TOO_LONG if len(line) > LONGEST_LINE else bytes(line)


def _reason(error: ValueError | RecursionError) -> str:
    """What is wrong with a line, in words."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start} of the line"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at column {error.colno} ({error.msg})"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a JSON string"
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply; keep the text in a field of the object itself"
    return str(error)
