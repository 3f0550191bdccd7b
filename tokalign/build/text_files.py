"""Reading a file of texts: `.txt` (one per line), `.jsonl` (in a field of each), `.parquet`.

It is streamed and hashed as it lies on disk, in bounded memory: a text longer than `LONGEST_LINE`
is reported like any other that cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from tokalign.build.sources import BROKEN, PACKINGS, CorpusFile, unpack, why_not_unpacked
from tokalign.errors import CorpusError, UsageError
from tokalign.installation import needing
from tokalign.storage import writing_to
from tokalign.tables.header import FileStamp

Report = Callable[[CorpusError], None]
"""Takes a line or a row that cannot be read. If it returns, that one is skipped."""

LONGEST_LINE = 4 << 20
"""Bytes of a line, of an object in a `.jsonl` file or of a text in a row. JSON takes up to 25 times
its bytes in memory while it is read."""

LONGEST_PARAGRAPH = 1 << 16
"""Characters of a paragraph; a longer one is cut. Encoding takes up to 800 bytes for each."""

_ROOM = "set TMPDIR to a folder with room for the largest corpus file"
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_JSON = json.JSONDecoder(parse_int=float)  # as int, Python refuses more than 4,300 digits
_RENAME = f"which its name does not say; rename it ({', '.join(PACKINGS)}) or unpack it"
_LEARN = "and give its folder to `tokalign learn`"
HTML = rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype )?html[\s>]"
_NO_TEXT = {
    rb"\x1f\x8b": f"packed by gzip, {_RENAME}",
    rb"\x28\xb5\x2f\xfd": f"packed by zstd, {_RENAME}",
    rb"\xfd7zXZ": f"packed by xz, {_RENAME}",
    rb"PK\x03\x04": f"packed by zip, {_RENAME}",
    rb"%PDF-": f"a PDF; save its text, or name it .pdf {_LEARN}",
    HTML: f"HTML; name it .html {_LEARN}, or keep it in .jsonl to have its tags counted",
    rb".{257}ustar(\0|  \0)": "a tar archive; unpack it and give its folder",
}
"""What the first line of a file is like that is no text, as a pattern."""
_ROWS = 256
_READING = {"pre_buffer": False, "page_checksum_verification": True}  # where a file has checksums
_SHOWN_NAMES, _SHOWN_CHARACTERS = 10, 40


def refuse(error: CorpusError) -> None:
    """The strictest `Report`: raise the error."""
    raise error


def _is_utf_16(begin: bytes) -> bool:
    """By its mark, or by every other byte of some ASCII."""
    high, low = {*begin[:8:2]} == {0}, {*begin[1:8:2]} == {0}
    return begin.startswith(_UTF_16) or (len(begin) > 3 and high != low)


class TextFile:
    """One reading of one file. The stamp is complete when the texts or paragraphs are exhausted."""

    def __init__(
        self,
        file: Path | CorpusFile,
        *,
        field: str = "text",
        weight: float = 1.0,
        report: Report = refuse,
        progress: Callable[[int], None] = lambda _: None,
        only_begin: bool = False,
    ) -> None:
        """field: where an object has its text, or the column. weight: for the stamp. report: called
        with each line or row that cannot be read. progress: called with bytes read since.
        only_begin: read only the lines that begin in the first 64 KiB of a text file."""
        self._source = file if isinstance(file, CorpusFile) else CorpusFile.of_path(file)
        self._field, self.weight = field, weight
        self._report, self._progress, self._only_begin = report, progress, only_begin
        self._digest = hashlib.sha256()
        self._bytes = self._text_bytes = self._lines = self._skipped = 0
        self._seen_object = False

    def stamp(self) -> FileStamp:
        return FileStamp(
            name=self._source.name,
            weight=self.weight,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
            text_bytes=self._text_bytes,
            lines=self._lines,
            skipped=self._skipped,
        )

    def paragraphs(self, *, whole: bool = False) -> Iterator[str]:
        """The lines of all texts that are not empty; long ones are cut, at spaces if possible.
        whole: the texts instead, with the line ends in them."""
        for text in self.texts():
            for line in [text.replace("\r\n", "\n")] if whole else text.split("\n"):
                for paragraph in cut(line):
                    if paragraph and not paragraph.isspace():
                        self._lines += 1
                        yield paragraph.removesuffix("\r")

    def texts(self) -> Iterator[str]:
        """One text per line, object or row; some may be empty.

        Raises: CorpusError for a file that cannot be read, changes meanwhile, is damaged, in UTF-16
        or another encoding, packed otherwise than its name says or, after all of them, for one
        most of which is no text; and for a field that the first object or the Parquet file lacks.
        """
        return self._texts_of_rows() if self._source.kind == ".parquet" else self._texts_of_lines()

    def _texts_of_lines(self) -> Iterator[str]:
        parse = self._parse_object if self._source.kind == ".jsonl" else bytes.decode
        foreign = 0  # bytes
        for number, line in enumerate(self._raw_lines(), 1):
            if line is None:
                self._skip(_WHY_TOO_LONG, number)
                continue
            if number == 1:
                self._require_text(line)
                line = line.removeprefix(_BOM)
            try:
                text = parse(line)
            except (ValueError, RecursionError) as error:
                self._skip(_reason(error, _LINE), number)
                foreign += len(line) if isinstance(error, UnicodeDecodeError) else line.count(0)
                continue
            foreign += line.count(0)
            yield text
        if 2 * foreign > self._text_bytes:
            # The lines of a binary file that happen to be UTF-8 would make a table of nothing.
            what = "its beginning" if self._only_begin else "it"
            raise self._wrong(
                f"most of {what} is no text in UTF-8; convert text in another encoding with: iconv "
                "-f ENCODING -t UTF-8, and leave out other files"
            )

    def _require_text(self, line: bytes) -> None:
        """Raises: CorpusError for the first line of a file that is known to be something else."""
        if _is_utf_16(line):
            # Most of its lines would pass for UTF-8, as texts full of zeros.
            raise self._wrong("it is UTF-16; convert it with: iconv -f UTF-16 -t UTF-8")
        for beginning, kind in _NO_TEXT.items():
            if re.match(beginning, line):
                raise self._wrong(f"it is {kind}")

    def _texts_of_rows(self) -> Iterator[str]:
        with self._whole() as path:
            rows = read_column(path, self._field, location=self._source.shown)
            for number, row in enumerate(rows, 1):
                try:
                    text = self._parse_row(row)
                except ValueError as error:
                    self._skip(_reason(error, "row"), number)
                    continue
                yield text

    def _parse_row(self, row: Any) -> str:
        text: str | None = row.as_py()
        if text is None:
            raise ValueError(f'no text in column "{self._field}" (choose another with --field)')
        size = len(text.encode())
        if size > LONGEST_LINE:
            raise ValueError(_WHY_TOO_LONG)
        self._text_bytes += size
        return text

    @contextmanager
    def _whole(self) -> Iterator[Path]:
        """The file on a local disk, hashed: Parquet is read from its end."""
        if not self._source.is_remote:
            for _ in self._chunks():
                pass
            yield Path(self._source.location)
            return
        with NamedTemporaryFile(prefix="tokalign-", suffix=".parquet") as file:
            for chunk in self._chunks():
                with writing_to(Path(file.name), _ROOM):
                    file.write(chunk)
                    file.flush()
            yield Path(file.name)

    def _skip(self, why: str, number: int) -> None:
        self._skipped += 1
        self._report(self._wrong(why, number))

    def _wrong(self, why: str, line: int | None = None) -> CorpusError:
        return CorpusError(why, path=self._source.shown, line=line)

    def _parse_object(self, line: bytes) -> str:
        if not line.strip():
            return ""
        record = _JSON.decode(line.decode())
        if not self._seen_object and isinstance(record, dict) and self._field not in record:
            # This is a mistake in the command, not a broken line.
            raise self._wrong(
                f'no field "{self._field}"; the fields of the first object are: '
                f"{_shown_names(record)}; choose one with --field"
            )
        self._seen_object = True
        text = record.get(self._field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(f'no text in field "{self._field}" (choose another with --field)')
        text.encode()  # JSON can spell half a surrogate pair, which is no text
        return text

    def _raw_lines(self) -> Iterator[bytes | None]:
        """The lines as they are, None for each that is longer than `LONGEST_LINE`."""
        begun = bytearray()  # of a line that is too long, one byte more than that
        for piece in self._decompressed():
            self._text_bytes += len(piece)
            first, *lines = piece.split(b"\n")
            begun += first[: LONGEST_LINE + 1 - len(begun)]
            if lines:
                yield _bounded(begun)
                begun = bytearray(lines.pop())
                yield from lines
                if self._only_begin:
                    return
        if begun:
            yield _bounded(begun)

    def _chunks(self) -> Iterator[bytes]:
        for chunk in self._source.chunks():
            self._digest.update(chunk)
            self._bytes += len(chunk)
            self._progress(len(chunk))
            yield chunk

    def _decompressed(self) -> Iterator[bytes]:
        packing = Path(self._source.name).suffix
        if packing not in PACKINGS:
            yield from self._chunks()
            return
        try:
            yield from unpack(self._chunks(), packing)
        except BROKEN as error:
            raise self._wrong(why_not_unpacked(error)) from error


_LINE = "line; a file in another encoding is converted with: iconv -f ENCODING -t UTF-8"
_WHY_TOO_LONG = (
    f"longer than {LONGEST_LINE >> 20} MiB; break it into lines, or into several objects"
)


def cut(line: str) -> Iterator[str]:
    """The parts of a line, of at most `LONGEST_PARAGRAPH` characters, cut at spaces if possible."""
    start, end = 0, LONGEST_PARAGRAPH
    while end < len(line):
        space = line.rfind(" ", start, end + 1)
        yield line[start : end if space < 0 else space]
        start = end if space < 0 else space + 1
        end = start + LONGEST_PARAGRAPH
    yield line[start:]


def _bounded(line: bytearray) -> bytes | None:
    return bytes(line) if len(line) <= LONGEST_LINE else None


def _reason(error: ValueError | RecursionError, of: str) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start} of the {of}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at column {error.colno} ({error.msg})"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a JSON string"
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply; keep the text in a field of the object itself"
    return str(error)


def _shown_names(names: Iterable[str]) -> str:
    """Names that a file gives its fields, as an error lists them."""
    cut = [name[:_SHOWN_CHARACTERS] for name in names]
    if len(cut) > _SHOWN_NAMES:
        cut[_SHOWN_NAMES:] = [f"and {len(cut) - _SHOWN_NAMES} more"]
    return ", ".join(cut) or "none"


def read_column(path: Path, column: str, *, location: str) -> Iterator[Any]:
    """The values of a column of strings, as pyarrow's scalars; `as_py` may find them not UTF-8.

    Raises: CorpusError for a file that is damaged or no Parquet, or without such a column of text;
    UsageError without pyarrow.
    """
    read_by = f"{location}: Parquet is read by pyarrow; install it"
    with needing(read_by, extra="corpora", kind=UsageError):
        import pyarrow
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path, **_READING) as file:
            _require_text(file.schema_arrow, column, location)
            for batch in file.iter_batches(batch_size=_ROWS, columns=[column], use_threads=False):
                yield from batch.column(0)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CorpusError(
            f"the Parquet file is damaged or is none ({reason}); fetch it again", path=location
        ) from error


def _require_text(schema: Any, column: str, location: str) -> None:
    """A column that is not there or no text is a mistake in the command, not a broken row."""
    from pyarrow import types

    if column not in schema.names:
        columns = _shown_names(schema.names)
        raise CorpusError(
            f'no column "{column}"; the columns are: {columns}; choose one with --field',
            path=location,
        )
    if schema.names.count(column) > 1:
        raise CorpusError(f'several columns are called "{column}"; rename one', path=location)
    kind = schema.field(column).type
    text = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(text) or types.is_large_string(text) or types.is_string_view(text)):
        raise CorpusError(
            f'column "{column}" holds {kind}, not text; choose another with --field', path=location
        )
