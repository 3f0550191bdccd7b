"""Tokenizers and models by name, looked for in a local path, the Hub's cache, an installed
distribution (nothing of it is imported) and the Hub, in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Generic, NamedTuple

from tokalign.errors import MissingAssetError
from tokalign.installation import install_line
from tokalign.names import hub
from tokalign.names.aliases import Alias, aliases, find_alias
from tokalign.names.packaged_model import packaged_model
from tokalign.storage import as_path
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Supplement
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Id]):
    """A tokenizer that was found. slug: names its folder of tables. folder: the model's own, None
    for a vocabulary file."""

    tokenizer: Tokenizer[Id]
    slug: str
    description: str
    folder: Path | None = None


class Location(NamedTuple):
    """Where the files are that a name stands for. folder: or a vocabulary file. source, how: the
    repository or the file of a distribution, and how it was found; empty for a local path."""

    name: str
    folder: Path
    source: str = ""
    how: str = ""

    @property
    def description(self) -> str:
        """One line."""
        if self.source:
            return f"{self.name} -> {self.source} in {self.folder}"
        return self.name if self.name == str(self.folder) else f"{self.name} -> {self.folder}"


def resolve_tokenizer(name: str, *, trust_remote_code: bool = False) -> Resolved[Id]:
    """Find the tokenizer that `name` stands for.

    trust_remote_code: run the program in a model's folder if its tokenizer is one.
    Raises: UsageError for a name that is no alias, path or repository; MissingAssetError when there
    is no such tokenizer on this machine or the Hub, with the ways to get it.
    """
    place = resolve(name, hub.TOKENIZER)
    path, is_local = place.folder, not place.source
    has_folder = path.is_dir()
    supplement = None if is_local or has_folder else _supplement(find_alias(name))
    described, called = f"{name} -> {place.source} {place.how}", name
    if is_local:
        described = place.description
        called = os.path.abspath(path if has_folder else path.resolve().parent)  # of . and .., too
    return Resolved(
        tokenizer=read_tokenizer(path, supplement, trust_remote_code=trust_remote_code),
        slug=called.rstrip("/").rsplit("/", 1)[-1].lower(),
        description=described,
        folder=path if has_folder else path.parent if is_local else None,
    )


def resolve_model(name: str) -> Location:
    """Find the folder with the weights. Raises: as `resolve_tokenizer`; MissingAssetError if it is
    not complete."""
    return resolve(name, hub.MODEL)


def resolve(name: str, wanted: hub.Wanted) -> Location:
    """Find the folder with some files of what a name stands for, or download them. Raises: as
    `resolve_model`."""
    path = as_path(name)
    # `build --target bielik --output .` makes a folder of that name, which holds tables alone.
    is_model = name.lower() not in aliases() or not all(
        part.missing(path) for part in (hub.CONFIG, hub.TOKENIZER)
    )
    if os.path.exists(path) and is_model:  # false for a name that is too long, where Path raises
        if wanted.locally and not path.is_dir():
            raise MissingAssetError(f"{path} is a file; give {wanted.instead}")
        if wanted.locally and (missing := wanted.missing(path)):
            raise MissingAssetError(f"{path} lacks {', '.join(missing)}; give {wanted.instead}")
        return Location(name, path)
    alias = find_alias(name)
    if cached := hub.find_cached(alias.repositories, alias.revision, wanted):
        repository, folder = cached
        return Location(name, folder, repository, "in the Hub cache")
    for part in wanted.packaged:
        if installed := _installed(getattr(alias, part)):
            source, file = installed
            folder = packaged_model(file) if part == "weights" else file
            return Location(name, folder, source, f"({alias.licence})")
    try:
        repository, folder = hub.download(alias.repositories, alias.revision, wanted)
    except MissingAssetError as error:
        ways = f"give {wanted.instead}"
        for part in wanted.packaged:
            if packaged := getattr(alias, part):
                line = install_line(packaged["distribution"], alone=True)
                ways = f"install its {part}: {line}; or {ways}"
        raise MissingAssetError(f"{error}; or {ways}") from error
    return Location(name, folder, repository, f"on the Hub ({alias.licence})")


def local_folder(name: str) -> Path | None:
    """The folder on this machine that a name is the path of; None if it is none."""
    path = as_path(name)
    return path if os.path.isdir(path) else None  # False for what no path can be; `is_dir` raises


def models_here() -> list[str]:
    """The aliases of models whose weights are on this machine, one for each model."""
    found: dict[str, str] = {}
    for name, alias in aliases().items():
        if where_is(alias):
            found.setdefault(alias.mlx, name)
    return [*found.values()]


def where_is(alias: Alias) -> str | None:
    """Where on this machine the weights of a model are, in words; nothing is read or converted."""
    if cached := hub.find_cached(alias.repositories, alias.revision, hub.MODEL):
        return f"{cached[0]} in the Hub cache"
    installed = _installed(alias.weights)
    return installed and installed[0]


def _installed(packaged: Mapping[str, Any]) -> tuple[str, Path] | None:
    """Where a file of a distribution is, in words, and the file; None if it is not installed."""
    if not packaged:
        return None
    package, name = packaged["distribution"], packaged["file"]
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file(name)))
    return (f"{name} of {package} {installed.version}", file) if file.is_file() else None


def _supplement(alias: Alias) -> Supplement:
    known = {field.name for field in fields(Supplement)} & alias.vocabulary.keys()
    return Supplement(**{name: alias.vocabulary[name] for name in known})
