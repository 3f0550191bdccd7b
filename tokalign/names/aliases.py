"""The aliases of registry.toml, and what a name that is no alias could mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, UsageError
from tokalign.tokenizer.spec import Supplement


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Where to find a model: an entry of registry.toml, or a Hub repository that was named.

    repository: the original; mlx: the one with MLX weights.
    distribution, file: an installed package and the official vocabulary file inside it;
        supplement: what that file leaves out.
    weights: an installed package and the GGUF file inside it that has the whole model.
    """

    name: str
    repository: str
    mlx: str
    revision: str = "main"
    licence: str = "see the repository"
    distribution: str | None = None
    file: str | None = None
    supplement: Supplement = field(default_factory=Supplement)
    weights: tuple[str, str] | None = None

    @property
    def repositories(self) -> tuple[str, ...]:
        """Where to look on the Hub. The MLX build comes first: it is what runs, and not gated."""
        return tuple(dict.fromkeys((self.mlx, self.repository)))


@cache
def aliases() -> Mapping[str, Alias]:
    """All aliases by name."""
    document = tomllib.loads(Path(__file__).with_name("registry.toml").read_text("utf-8"))
    specials = document.pop("specials")
    return {
        name: _read_alias(name, entry, specials)
        for known, entry in document.items()
        for name in (known, *entry.get("also", ()))
    }


def find_alias(name: str) -> Alias:
    """What `name`, which is no path, stands for: an alias, or else a Hub repository.

    Raises: UsageError for a name that can be neither; MissingAssetError for a path that is missing.
    """
    alias = aliases().get(name)
    if alias is not None:
        return alias
    known = ", ".join(aliases())
    if "/" not in name:
        close = _closest(name)
        hint = f"did you mean {close}? " if close else ""
        raise UsageError(
            f"{name} is neither an alias nor a path; {hint}the aliases are {known}; "
            "a name may also be a local path or a Hub repository (owner/name)"
        )
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise MissingAssetError(f"{name} does not exist; give an existing path or one of: {known}")
    return Alias(name=name, repository=name, mlx=name)


def _closest(name: str) -> str | None:
    """The alias that `name` may be a misspelling of, if there is one.

    An alias with other digits is another model, however similar it looks: for bielik-11b this is
    bielik, not bielik-1.5b.
    """
    digits = _digits(name)
    possible = [alias for alias in aliases() if not digits or _digits(alias) in ("", digits)]
    return next(iter(get_close_matches(name, possible, n=1)), None)


def _digits(name: str) -> str:
    return re.sub(r"\D", "", name)


def _read_alias(name: str, entry: dict[str, Any], specials: dict[str, Any]) -> Alias:
    vocabulary = entry.get("vocabulary", {})
    weights = entry.get("weights")
    listed = specials.get(vocabulary.get("specials"))
    return Alias(
        name=name,
        repository=entry["repository"],
        mlx=entry["mlx"],
        revision=entry["revision"],
        licence=entry["licence"],
        distribution=vocabulary.get("distribution"),
        file=vocabulary.get("file"),
        weights=(weights["distribution"], weights["file"]) if weights else None,
        supplement=Supplement(
            pattern=vocabulary.get("pattern"),
            ignore_merges=vocabulary.get("ignore_merges", False),
            ranked_by_id=vocabulary.get("ranked_by_id", False),
            specials=dict(enumerate(_spellings(listed), listed["first"])) if listed else {},
            eos=vocabulary.get("eos"),
            nfc=vocabulary.get("nfc", False),
        ),
    )


def _spellings(listed: dict[str, Any]) -> Iterator[str]:
    yield from listed["spellings"]
    then = listed.get("then")
    if then:
        count = then["until"] - listed["first"] - len(listed["spellings"]) + 1
        yield from (then["pattern"].format(then["from"] + i) for i in range(count))
