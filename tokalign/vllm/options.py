"""How the proposer is configured: vLLM's `additional_config`, under the key "tokalign"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tokalign.arguments import shown
from tokalign.errors import UsageError

SECTION = "tokalign"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerOptions:
    """What to propose from.

    dictionary: files; by default the dictionaries that fit the model's tokenizer are looked for,
        as by all commands of tokalign.
    language: of the dictionaries to look for, such as pl.
    copy: whether contexts are copied from.
    p_min: the least probability of a whole proposal; None for the dictionary's own. A higher one
        pays where a large batch makes verified rows expensive.
    """

    dictionary: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    copy: bool = True
    p_min: float | None = None

    @classmethod
    def from_config(cls, additional_config: object) -> ProposerOptions:
        """The options in a configuration, where one text stands for a list of one.

        Raises: UsageError for an option that is unknown or of a wrong type.
        """
        given = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
        _require(isinstance(given, Mapping), SECTION, "a map", given)
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise UsageError(
                f"there is no option {shown(unknown[0])} under {SECTION} in additional_config; the "
                f"options are {', '.join(known)}"
            )
        options = dict(given)
        for name in ("dictionary", "language"):
            options[name] = _texts(name, given.get(name, []))
        options["language"] = tuple(
            name.strip() for text in options["language"] for name in text.split(",")
        )
        copy, p_min = options.get("copy", True), options.get("p_min")
        _require(isinstance(copy, bool), "copy", "true or false", copy)
        is_number = isinstance(p_min, int | float) and not isinstance(p_min, bool)
        fits = p_min is None or (is_number and 0 < p_min <= 1)
        _require(fits, "p_min", "a probability over 0", p_min)
        return cls(**options)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    fits = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    _require(fits, name, "a text or a list of texts", value)
    return tuple(texts)


def _require(fits: bool, name: str, kind: str, value: object) -> None:
    if not fits:
        raise UsageError(f"{name} in additional_config has to be {kind}, not {shown(value)}")
