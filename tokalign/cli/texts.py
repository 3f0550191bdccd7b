"""Reading whole texts from a file, for commands that measure on texts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from tokalign.build.text_files import TextFile, require_regular
from tokalign.errors import CorpusError

text_option = click.option(
    "--text",
    "text_file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="Reference texts: one per line of .txt, one per object of .jsonl; also .gz or .zst.",
)
field_option = click.option(
    "--field", default="text", show_default=True, help="The field of a .jsonl object with its text."
)
limit_option = click.option("--limit", type=click.IntRange(min=1), help="Only the first N texts.")


def read_texts(path: Path, *, field: str = "text", limit: int | None = None) -> list[str]:
    """The first `limit` texts of a file that are not blank, with the line breaks inside them.

    Raises: CorpusError for a file that is missing, not a regular file, empty or damaged, and for a
        line that cannot be read.
    """
    require_regular(path)
    texts = (text.removesuffix("\r") for text in TextFile(path, field=field).texts())
    found = list(islice((text for text in texts if text.strip()), limit))
    if not found:
        raise CorpusError("there is no text in it; give a file with text", path=str(path))
    return found
