"""`tokalign inspect`: what is in a table file, or how a tokenizer is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.arguments import as_path
from tokalign.cli.output import always_quiet_option, echo, json_option, print_json, table

if TYPE_CHECKING:
    from tokalign.tables.bundle import Bundle


@click.command("inspect")
@click.argument("file", metavar="TABLE|TOKENIZER")
@json_option
@always_quiet_option
def command(*, file: str, as_json: bool) -> None:
    """Show what a table file is and holds, or how far a model's tokenizer is understood.

    Of a table only the header is read; `tokalign verify` checks every byte. A tokenizer is an
    alias, a model's folder, a tokenizer file or a Hub repository.
    """
    path = as_path(file)
    described = _describe_tokenizer(file) if _is_tokenizer(path) else _describe_table(path)
    if as_json:
        print_json(described)
    else:
        echo(table(_rows(described)))


def _is_tokenizer(path: Path) -> bool:
    """Whether this is no file with a table's magic, and not meant to be one."""
    if path.is_file():
        return path.suffix in (".json", ".model", ".tiktoken")
    return path.suffix != ".tok"


def _describe_table(path: Path) -> dict[str, Any]:
    from tokalign.tables.bundle import FORMAT_VERSION, open_bundle

    return {
        "path": str(path),
        "bytes": path.stat().st_size if path.exists() else 0,
        "format_version": FORMAT_VERSION,
        **_describe(open_bundle(path)),
    }


def _describe_tokenizer(name: str) -> dict[str, Any]:
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.tokenizer.spec import Level
    from tokalign.tokenizer.vocabulary import TargetId

    found: Resolved[TargetId] = resolve_tokenizer(name)
    tokenizer = found.tokenizer
    facts: dict[str, Any] = {
        "tokenizer": found.description,
        "level": str(tokenizer.level),
        "why": tokenizer.spec.why,
        "fingerprint": tokenizer.fingerprint,
        "vocabulary_size": len(tokenizer.vocabulary),
        "special_tokens": len(tokenizer.vocabulary.specials),
    }
    if tokenizer.level is not Level.IDS_ONLY:
        facts["added_tokens_in_text"] = len(tokenizer.encoder.added)
        facts["bytes_that_no_token_spells"] = len(tokenizer.encoder.missing)
    return facts


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
