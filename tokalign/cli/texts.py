"""Whole texts out of a file, for measuring: one per line of .txt, one per object of .jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from tokalign.errors import CorpusError

text_option = click.option(
    "--text",
    "text_file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="Reference texts: one per line of .txt, one per object of .jsonl.",
)
field_option = click.option(
    "--field", default="text", show_default=True, help="Where .jsonl has its text."
)
limit_option = click.option("--limit", type=click.IntRange(min=1), help="Only the first N texts.")
"""What `emulate` and `replay` have in common."""


def read_texts(path: Path, *, field: str = "text", limit: int | None = None) -> list[str]:
    """The first `limit` texts of a file, line breaks inside them kept.

    Raises: CorpusError for a file that is missing, empty, not UTF-8, or lacks the field.
    """
    if not path.is_file():
        raise CorpusError("no such file; give an existing .txt or .jsonl file", path=str(path))
    texts = list(islice(_texts(path, field), limit))
    if not texts:
        raise CorpusError("there is no text in it; give a file with text", path=str(path))
    return texts


def _texts(path: Path, field: str) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = _text(line, field if path.suffix == ".jsonl" else None)
            except (ValueError, KeyError, TypeError) as error:
                raise CorpusError(_reason(error, field), path=str(path), line=number) from error
            if text.strip():
                yield text


def _text(line: bytes, field: str | None) -> str:
    decoded = line.decode("utf-8").rstrip("\r\n")
    if field is None or not decoded:
        return decoded
    text = json.loads(decoded)[field]
    if not isinstance(text, str):
        raise TypeError(field)
    return text


def _reason(error: Exception, field: str) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8; convert the file first"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}); a .jsonl file has one object per line"
    return f'no text in field "{field}"; choose another with --field'
