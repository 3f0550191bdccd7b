"""What `/set` changes in a conversation: how answers are sampled, cut off and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokalign.cli.output import table
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampling

_FLAGS = {"temp": "temperature"}
"""Options of the command line that have another name here."""
_SWITCH = {"on": True, "off": False}
_SAMPLED: Mapping[str, tuple[Callable[[str], float], str]] = {
    "temperature": (float, "a number from 0, which is greedy"),
    "top_p": (float, "a number from 0 to 1"),
    "top_k": (int, "a whole number from 0, which is off"),
    "min_p": (float, "a number from 0 to 1"),
    "seed": (int, "a whole number from 0"),
}
"""name -> (how its text is read, what it may be); all are fields of `Sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """max_tokens: of an answer; None for as many as the context holds."""

    sampling: Sampling
    max_tokens: int | None
    markdown: bool

    def changed(self, typed: str) -> Settings:
        """The settings after "temperature 0.7" or "temperature=0.7". Raises: UsageError."""
        name, value = _parted(typed)
        if name == "markdown":
            return replace(self, markdown=_read(name, value, _SWITCH.__getitem__, "on or off"))
        if name == "max_tokens":
            most = _read(name, value, _max_tokens, "a whole number from 1, or -1 for no limit")
            return replace(self, max_tokens=None if most == -1 else most)
        if name not in _SAMPLED:
            raise UsageError(f"there is no setting {name!r}; there are {', '.join(self._values)}")
        reader, range_ = _SAMPLED[name]

        def sampling(text: str) -> Sampling:
            number: Any = {name: reader(text)}
            if number[name] < 0:
                raise ValueError
            return replace(self.sampling, **number)

        return replace(self, sampling=_read(name, value, sampling, range_))

    def shown(self, typed: str = "") -> str:
        """All values, or the one that `typed` has just changed."""
        name, _ = _parted(typed)
        return table((one, value) for one, value in self._values.items() if name in ("", one))

    @property
    def _values(self) -> dict[str, object]:
        values: dict[str, object] = {name: getattr(self.sampling, name) for name in _SAMPLED}
        if self.sampling.temperature == 0:
            values["temperature"] = "0 (greedy, so the other four change nothing)"
        values["max_tokens"] = "no limit" if self.max_tokens is None else self.max_tokens
        values["markdown"] = "on" if self.markdown else "off"
        return values


def _parted(typed: str) -> tuple[str, str]:
    name, _, value = typed.replace("=", " ", 1).partition(" ")
    name = name.replace("-", "_")
    return _FLAGS.get(name, name), value.strip()


def _max_tokens(text: str) -> int:
    if (most := int(text)) == 0 or most < -1:
        raise ValueError
    return most


def _read(name: str, text: str, reader: Callable[[str], Any], range_: str) -> Any:
    """Raises: UsageError for a text that is none of those in the range."""
    try:
        return reader(text)
    except (KeyError, ValueError, UsageError) as error:
        raise UsageError(f"{name} has to be {range_}, not {text!r}; nothing has changed") from error
