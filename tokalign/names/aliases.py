"""The aliases of registry.toml, and what a name can be. Nothing heavy is imported."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, UsageError, shown
from tokalign.storage import as_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Where to find a model: an entry of registry.toml, or a Hub repository that was named.

    mlx: the repository with MLX weights. parameters, bits: of the weights; 0 where not known.
    vocabulary: a `distribution` and the official vocabulary `file` inside it, and what that file
    leaves out, by the names of `Supplement`'s fields.
    weights: a distribution and the GGUF file inside it that has the whole model.
    """

    repository: str
    mlx: str
    revision: str = "main"
    licence: str = "see the repository"
    parameters: float = 0.0
    bits: int = 0
    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def repositories(self) -> tuple[str, ...]:
        """Where to look on the Hub. The MLX build comes first: it is what runs, and not gated."""
        return tuple(dict.fromkeys((self.mlx, self.repository)))

    @property
    def bytes(self) -> float:
        """About the bytes of the MLX weights; a group of 64 quantized ones adds half a bit each."""
        return self.parameters * (self.bits + (0.5 if self.bits < 16 else 0)) / 8


@cache
def aliases() -> Mapping[str, Alias]:
    """All aliases by name."""
    document = tomllib.loads(Path(__file__).with_name("registry.toml").read_text("utf-8"))
    specials = document.pop("specials")
    return {
        name: _read_alias(entry, specials)
        for known, entry in document.items()
        for name in (known, *entry.get("also", ()))
    }


def find_alias(name: str) -> Alias:
    """What `name`, which is no path, stands for: an alias in any case, or a Hub repository. Raises:
    UsageError if it can be neither; MissingAssetError for a path that is missing."""
    alias = aliases().get(name.lower())
    if alias is not None:
        return alias
    is_path = name.startswith((".", "/", "~")) or name.endswith("/")
    if "/" not in name or (" " in name and not is_path):
        close = _closest(name.lower())
        hint = f" (did you mean {close}?)" if close else ""
        hint = hint or " (a prompt comes after the name of a model)" * (" " in name)
        raise UsageError(
            f"{shown(name)} is neither an alias nor a path{hint}; `tokalign models` lists the "
            "aliases, and a name may also be a local path or a Hub repository (owner/name)"
        )
    if name.count("/") > 1 or is_path:
        raise MissingAssetError(
            f"{name[:200]} does not exist; give an existing path, or an alias of `tokalign models`"
        )
    return Alias(repository=name, mlx=name)


def check_name(name: str) -> str:
    """The name, if it can stand for a model. Raises: as `find_alias`."""
    if not os.path.exists(as_path(name)):  # `Path.exists` raises for a prompt in its place
        find_alias(name)
    return name


def _closest(name: str) -> str | None:
    """One with other digits is another model: for bielik-11b this is bielik, not bielik-1.5b."""
    digits = _digits(name)
    possible = [alias for alias in aliases() if not digits or _digits(alias) in ("", digits)]
    return next(iter(get_close_matches(name, possible, n=1)), None)


def _digits(name: str) -> str:
    return re.sub(r"\D", "", name)


def _read_alias(entry: dict[str, Any], specials: dict[str, Any]) -> Alias:
    stated, vocabulary = entry.copy(), entry.get("vocabulary", {})
    stated.pop("also", None)
    if listed := specials.get(vocabulary.get("specials")):
        stated["vocabulary"] = vocabulary | {"specials": _numbered(listed)}
    return Alias(**stated)


def _numbered(listed: dict[str, Any]) -> dict[int, str]:
    """The special tokens that a table of registry.toml lists: id -> spelling."""
    spellings, then = list(listed["spellings"]), listed.get("then")
    if then:
        count = then["until"] - listed["first"] - len(spellings) + 1
        spellings += (then["pattern"].format(then["from"] + i) for i in range(count))
    return dict(enumerate(spellings, listed["first"]))
