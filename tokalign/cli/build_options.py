"""From the options of `tokalign build` to what the builders take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, DictspecOptions


def read_dictionary_options(
    kind: str, backoff: dict[str, Any], dictspec: dict[str, Any], p_min: float | None
) -> BackoffOptions | DictspecOptions:
    """The options of one kind of dictionary; what is not given has its default.

    backoff, dictspec: what was given for each kind. p_min: for either kind, None if not given.
    Raises: UsageError for an option of the other kind.
    """
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, DictspecOptions

    if kind == "dictspec":
        if "max_bytes" in backoff:
            raise UsageError("--dictionary-bytes bounds a backoff dictionary; use --ngrams here")
        if "workspace" in backoff:
            raise UsageError("--workspace is for --dictionary-kind backoff; leave it out here")
        return DictspecOptions(**dictspec, **given(p_min=p_min))
    if dictspec:
        raise UsageError("--ngrams is for --dictionary-kind dictspec; use --dictionary-bytes here")
    return BackoffOptions(**backoff, **given(p_min=p_min))


def given(**options: Any) -> dict[str, Any]:
    """Those of the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def read_size(text: str, option: str = "--memory") -> int:
    """A number of bytes, which may end in K, M or G. Raises: UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)B?", text.upper())
    if match is None:
        raise UsageError(f"{option} {text} is not a size; give one such as 500M or 2G")
    return int(float(match[1]) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]))
