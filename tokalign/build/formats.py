"""What corpus files are packed in.

`.gz`, `.zst` and `.xz` are unpacked in small steps, so that no archive can fill the memory. The
texts of one column of a Parquet file are read row by row, by pyarrow (extra `[corpora]`).
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from tokalign.errors import CorpusError, UsageError

LARGEST_WINDOW = 1 << 27
"""Bytes of text that an archive may refer back to, all of which are kept in memory. More than that
the command `zstd` does not unpack either unless it is told to."""

_PIECE = 1 << 18
_ROWS = 256
_READING = {"pre_buffer": False, "page_checksum_verification": True}  # where a file has checksums
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 20, 40
_GZIP = 16 + zlib.MAX_WBITS
_XZ_MEMORY = LARGEST_WINDOW + (1 << 20)  # the window and the decoder's own state

BROKEN = (zlib.error, zstandard.ZstdError, lzma.LZMAError, EOFError)
"""What `unpack` raises for an archive that is damaged or takes too much memory."""


PACKINGS: dict[str, tuple[Callable[[], Any], int]] = {
    # A byte of deflate is at most 1,032 bytes of text: 16 MB at once.
    ".gz": (lambda: zlib.decompressobj(_GZIP), 1 << 14),
    # The shortest block of zstandard has 4 bytes and is at most 128 KiB of text: 16 MB at once.
    ".zst": (
        lambda: zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj(),
        1 << 9,
    ),
    # Zeros, which LZMA packs best, take one byte in 7,000: 14 MB at once.
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), 1 << 11),
}
"""How a file name ends -> what makes a decompressor of one stream, and how many bytes of the
archive it is given at once. That bounds what comes out at once, since no format can say more than
so much in so few bytes."""


def unpack(chunks: Iterator[bytes], packing: str) -> Iterator[bytes]:
    """Decompress streams or frames that follow each other, in pieces of at most 256 KiB.

    `zstandard.open` is not used: it reads the first frame only, and like every stream reader of
    zstandard it takes a frame that is cut off for a whole one.
    packing: one of the names in `PACKINGS`.
    Raises: one of `BROKEN`; EOFError for a frame that is cut off.
    """
    new, step = PACKINGS[packing]
    decompressor = None
    for chunk in chunks:
        for start in range(0, len(chunk), step):
            rest = chunk[start : start + step]
            while rest:
                decompressor = decompressor or new()
                text = decompressor.decompress(rest)
                for begin in range(0, len(text), _PIECE):
                    yield text[begin : begin + _PIECE]
                rest = decompressor.unused_data if decompressor.eof else b""
                if decompressor.eof:
                    decompressor = None
    if decompressor is not None:
        raise EOFError("it ends too early")


def why_not_unpacked(error: Exception) -> str:
    """What is wrong with an archive, and what to do, in words."""
    if "too much memory" in str(error) or "Memory usage limit" in str(error):
        return (
            f"unpacking it takes a window of more than {LARGEST_WINDOW >> 20} MiB; "
            "pack it again without --long and --ultra"
        )
    return f"the archive is damaged ({error}); fetch it again"


def shown_names(names: Iterable[str], *, most: int) -> str:
    """Names that a file gives its fields, as an error lists them."""
    cut = [name[:_SHOWN_CHARACTERS] for name in names]
    more = [f"and {len(cut) - most} more"] * (len(cut) > most)
    return ", ".join([*cut[:most], *more]) or "none"


def read_column(path: Path, column: str, *, location: str) -> Iterator[Any]:
    """The values of a column of strings, as pyarrow's scalars; `as_py` may find them not UTF-8.

    location: what errors call the file.
    Raises: CorpusError for a file that is not Parquet or is damaged, without the column (the error
    names the columns there are), or with something else than text in it; UsageError without
    pyarrow.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"{location}: Parquet is read by pyarrow; install it with: "
            "pip install 'tokalign[corpora]'"
        ) from error
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
        columns = shown_names(schema.names, most=_SHOWN_COLUMNS)
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
