"""From the options of `tokalign build` to what the builders take."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tokalign.arguments import shown
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, DictspecOptions


_LONGEST_SIZE = 20


def dictionary_options(kind: str, **asked: Any) -> BackoffOptions | DictspecOptions:
    """The options of one kind of dictionary, backoff or dictspec.

    asked: options of both kinds; None for what was not asked for, which then has its default.
    Raises: UsageError.
    """
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, DictspecOptions

    options = BackoffOptions if kind == "backoff" else DictspecOptions
    names = {field.name for field in fields(options)}
    return options(**{name: v for name, v in asked.items() if name in names and v is not None})


def read_size(text: str, option: str = "--memory") -> int:
    """A number of bytes, which may end in K, M or G. Raises: UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)B?", text.upper())
    if match is None or len(text) > _LONGEST_SIZE:
        raise UsageError(f"{option} {shown(text)} is not a size; give one such as 500M or 2G")
    return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))
