"""The texts of one column of a Parquet file, row by row, by pyarrow (extra `[corpora]`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokalign.errors import CorpusError, UsageError

_ROWS = 256
_READING = {"pre_buffer": False, "page_checksum_verification": True}  # where a file has checksums
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 20, 40


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
        names = [name[:_SHOWN_CHARACTERS] for name in schema.names]
        more = [f"and {len(names) - _SHOWN_COLUMNS} more"] * (len(names) > _SHOWN_COLUMNS)
        columns = ", ".join([*names[:_SHOWN_COLUMNS], *more]) or "none"
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
