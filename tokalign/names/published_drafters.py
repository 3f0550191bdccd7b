"""Trained drafters that are published (drafters.toml), by the name of their model's repository,
whatever its format: an alias, a repository, a snapshot in the cache, or a folder called so."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from tokalign.errors import MissingAssetError
from tokalign.names import hub
from tokalign.names.aliases import aliases, find_alias
from tokalign.names.registry import resolve
from tokalign.storage import as_path

AUTO = "auto"
"""In the place of a drafter's name: the one that is published for the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDrafter:
    """An entry of drafters.toml. also: further repositories of it, in other formats."""

    repository: str
    targets: tuple[str, ...]
    kind: str
    licence: str | None = None
    size: str | None = None
    also: tuple[str, ...] = ()

    def downloaded(self) -> Path | None:
        """Its folder in the Hub's cache; None if it is not there, or not whole."""
        cached = hub.find_cached((self.repository, *self.also), "main", hub.DRAFTER)
        return None if cached is None else cached[1]

    def __str__(self) -> str:
        about = (self.kind, self.licence or "see its licence there", self.size or "size not stated")
        return f"{self.repository} ({', '.join(about)})"


@cache
def published_drafters() -> tuple[PublishedDrafter, ...]:
    """All of them, the first ones first."""
    document = tomllib.loads(Path(__file__).with_name("drafters.toml").read_text("utf-8"))
    return msgspec.convert(document["drafter"], tuple[PublishedDrafter, ...])


def published_for(target: str | Path | None) -> PublishedDrafter | None:
    """The drafter for a target, which is named as in `resolve_model`; None if none is known."""
    names = set() if target is None else {_bare(name) for name in _names(str(target))}
    for drafter in published_drafters():
        if names & {_bare(name) for name in drafter.targets}:
            return drafter
    return None


def require_published(target: str | Path | None) -> PublishedDrafter:
    """What `auto` stands for. Raises: MissingAssetError if no drafter of the target is known."""
    published = published_for(target)
    if published is None:
        raise MissingAssetError(
            f"no published drafter of {target or 'this target'} is known; name one, train one "
            "with tokalign train, or leave the drafter out"
        )
    return published


def named_or_published(name: str, target: str | Path | None) -> Path:
    """The folder of the drafter that is named, or published for `target`; downloaded if it is not
    here. Raises: as `resolve` and `require_published`."""
    if name != AUTO:
        return resolve(name, hub.DRAFTER).folder
    published = require_published(target)
    return published.downloaded() or resolve(published.repository, hub.DRAFTER).folder


def _names(target: str) -> Iterator[str]:
    """What a model is called: its repositories, or the end of its path."""
    path = as_path(target)
    if target in aliases() or not os.path.exists(path):  # `Path` raises for a long name
        yield from find_alias(target).repositories
        return
    yield path.resolve().name
    yield from (part for part in path.parts if part.startswith("models--"))  # of the Hub's cache


_FORMATS = re.compile(
    r"([-_.](mlx|\d+(\.\d+)?-?bits?|bf16|fp?16|fp8|q\d\w*|dwq|qat|awq|gptq|optiq|mxfp\d|nvfp4|quantized))+$"
)


def _bare(name: str) -> str:
    """A repository's name without its owner and without the formats that it ends with."""
    return _FORMATS.sub("", re.split(r"/|--", name)[-1].lower())
