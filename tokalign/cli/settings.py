"""What `/set` changes in a conversation: how answers are sampled, cut off and shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.options import SAMPLING, TEMP
from tokalign.cli.output import table
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampling

_NAMES = ("top_p", "top_k", "min_p", "seed")
_SAMPLED = {"temperature": TEMP.type} | {o.name: o.type for o in SAMPLING if o.name in _NAMES}
"""Fields of `Sampling`."""
_TYPES = {**_SAMPLED, "max_tokens": click.IntRange(min=-1), "markdown": click.BOOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """max_tokens: of an answer; None for as many as the context holds."""

    sampling: Sampling
    max_tokens: int | None
    markdown: bool

    def changed(self, typed: str) -> Settings:
        """The settings after "temperature 0.7" or "temperature=0.7". Raises: UsageError."""
        name, text = _parted(typed)
        if name not in _TYPES:
            raise UsageError(f"there is no setting {name!r}; there are {', '.join(_TYPES)}")
        try:
            value = _TYPES[name].convert(text, None, None)
            if name in _SAMPLED:
                return replace(self, sampling=replace(self.sampling, **{name: value}))
            if name == "max_tokens" and value == 0:
                raise UsageError("0 generates nothing; -1 is no limit.")
        except (click.BadParameter, UsageError) as error:
            raise UsageError(f"{name}: {error} Nothing has changed.") from error
        changed: dict[str, Any] = {name: None if value == -1 else value}
        return replace(self, **changed)

    def shown(self, typed: str = "") -> str:
        """All values, or the one that `typed` has just changed."""
        values: dict[str, object] = {name: getattr(self.sampling, name) for name in _SAMPLED}
        if self.sampling.temperature == 0:
            values["temperature"] = "0 (greedy, so the other four change nothing)"
        values["max_tokens"] = "no limit" if self.max_tokens is None else self.max_tokens
        values["markdown"] = "on" if self.markdown else "off"
        name, _ = _parted(typed)
        return table((one, value) for one, value in values.items() if name in ("", one))


def _parted(typed: str) -> tuple[str, str]:
    name, _, value = typed.replace("=", " ", 1).partition(" ")
    name = name.replace("-", "_")
    return "temperature" if name == "temp" else name, value.strip()
