"""`tokalign inspect`: what is in a table file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.output import always_quiet_option, echo, json_option, print_json, table
from tokalign.cli.path_types import PATH

if TYPE_CHECKING:
    from tokalign.tables.bundle import Bundle


@click.command("inspect")
@click.argument("file", type=PATH)
@json_option
@always_quiet_option
def command(*, file: Path, as_json: bool) -> None:
    """Show what FILE is, what it was built from, and what it holds.

    Reads only the header; `tokalign verify` checks every byte.
    """
    from tokalign.tables.bundle import FORMAT_VERSION, open_bundle

    described = {
        "path": str(file),
        "bytes": file.stat().st_size if file.exists() else 0,
        "format_version": FORMAT_VERSION,
        **_describe(open_bundle(file)),
    }
    if as_json:
        print_json(described)
    else:
        echo(table(_rows(described)))


def _describe(bundle: Bundle) -> dict[str, Any]:
    return {
        "kind": bundle.kind,
        "fingerprints": bundle.fingerprints,
        "corpus": bundle.corpus,
        "parameters": bundle.parameters,
        "statistics": bundle.statistics,
        "sections": {name: len(section) for name, section in bundle.sections.items()},
    }


def _rows(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested keys as dotted names; the elements of a list (the corpus files) are numbered."""
    for key, item in value.items():
        if isinstance(item, list):
            item = dict(enumerate(item, 1))
        if isinstance(item, Mapping):
            yield from _rows(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", f"{item:,}" if isinstance(item, int) else item
