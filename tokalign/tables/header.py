"""The header of a table file, and its schema: whatever a file says, only this shape is used.

Types, sizes and names are checked before anything is read with them. `bundle.py` reads the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.errors import BundleError, FingerprintError

KEYS = ("kind", "fingerprints", "corpus", "parameters", "statistics", "sections")
ALIGNMENT = 64
"""Sections start at multiples of this: a cache line, and more than any array needs."""

_ROLES: dict[str, set[str]] = {
    "dictionary": {"target"},
    "alignment": {"draft", "target"},
    "logits": {"target"},
    "pack": set(),
}
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\x21-\x7e]{1,64}")
_STAMP: dict[str, Any] = {
    "name": str,
    "weight": (int, float),
    "bytes": int,
    "sha256": str,
    "text_bytes": int,
    "lines": int,
    "skipped": int,
}
_LONGEST_TEXT, _DEEPEST = 4096, 4
MOST_HEADER_BYTES = 1 << 21
"""A longer header is no table's: it would take seconds to check. A corpus file takes about 200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a table file says of itself.

    kind: "dictionary", "alignment", "logits" or "pack".
    fingerprints: of the tokenizers it was built for: "target", and "draft" for an alignment.
    corpus: the stamp of the text that was counted (see `build.corpus`); empty if there was none.
    parameters: every choice that decided the content. statistics: what was counted.
    name: of the file, for messages.
    """

    kind: str
    fingerprints: Mapping[str, str]
    corpus: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    name: str = field(default="the table", compare=False)

    @property
    def language(self) -> str:
        """The language of the corpus, "unnamed" where the header does not say it."""
        return str(self.parameters.get("language", "unnamed"))

    def require(self, *, target: str, draft: str | None = None, remedy: str) -> None:
        """Refuse a table that was built for other tokenizers.

        target, draft: the fingerprints of the tokenizers in use; `draft` only for an alignment.
        remedy: the command that rebuilds it. Raises: FingerprintError.
        """
        for role, found in (("target", target), ("draft", draft)):
            expected = self.fingerprints.get(role)
            if found is not None and expected is not None and expected != found:
                raise FingerprintError(
                    f"{self.name} ({role})", expected=expected, found=found, remedy=remedy
                )

    def number(
        self, name: str, *, most: float, least: float = 0, kind: type[int] | type[float] = int
    ) -> Any:
        """A number among the parameters, or else the statistics; `kind` is int or float.

        Raises: BundleError if it is missing, of another type, or not from `least` to `most`.
        """
        value: Any = self.parameters.get(name, self.statistics.get(name))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or kind(value) != value:
            raise self.wrong(f"its header's {name} is missing or no {kind.__name__}")
        if not least <= value <= most:
            raise self.wrong(f"its header's {name} is {value}, not from {least} to {most}")
        return kind(value)

    def vocabulary_size(self, expected: int | None = None) -> int:
        """The vocabulary size that a table of target ids is for.

        expected: of the tokenizer in use; by default, what the header says is believed.
        Raises: BundleError if it is missing or another one.
        """
        said = int(self.number("vocabulary_size", least=1, most=1 << 32))
        if expected not in (None, said):
            raise self.wrong(f"it is for a vocabulary of {said} ids, not {expected}")
        return said

    def wrong(self, what: str) -> BundleError:
        """The error about a table that is not as its builder makes it."""
        return BundleError(f"{self.name}: {what}; rebuild the table with: tokalign build")


class HeaderError(ValueError):
    """A header that breaks the schema; the message says where."""


def parse_header(data: memoryview) -> dict[str, Any]:
    """The header in these bytes, with every rule of the schema checked.

    Raises: HeaderError.
    """
    try:
        header: Any = msgpack.unpackb(data, object_pairs_hook=_without_duplicates)
    except HeaderError:
        raise
    except ValueError as error:  # msgpack's errors and broken UTF-8
        raise HeaderError("it is not msgpack") from error
    _require(isinstance(header, dict) and set(header) == set(KEYS), f"its keys are not {KEYS}")
    kind = header["kind"]
    _require(isinstance(kind, str) and _NAME.fullmatch(kind), "its kind is no short name")
    _check_fingerprints(header["fingerprints"], kind)
    _check_corpus(header["corpus"])
    for name in ("parameters", "statistics"):
        _require(isinstance(header[name], dict), f"{name} is no map")
        _check_plain(header[name], name)
    language = header["parameters"].get("language", "unnamed")
    _require(isinstance(language, str) and _NAME.fullmatch(language), "language is no short name")
    _check_directory(header["sections"])
    return dict(header)


def place_sections(sizes: Mapping[str, int]) -> tuple[dict[str, list[int]], int]:
    """Offset and size of each section, and where the last one ends.

    The sections lie in the order of their names, each at the next multiple of ALIGNMENT.
    """
    directory, end = {}, 0
    for name in sorted(sizes):
        directory[name] = [aligned(end), sizes[name]]
        end = sum(directory[name])
    return directory, end


def aligned(offset: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _without_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    _require(len(found) == len(pairs), "a key is there twice")
    return found


def _check_fingerprints(found: Any, kind: str) -> None:
    _require(isinstance(found, dict), "fingerprints is no map")
    roles = _ROLES.get(kind)
    _require(
        all(isinstance(role, str) for role in found) and roles in (None, set(found)),
        f"its fingerprints are not those of a table of kind {kind}",
    )
    for value in found.values():
        is_one = isinstance(value, str) and _FINGERPRINT.fullmatch(value)
        _require(is_one, "a fingerprint is no SHA-256 in hexadecimal digits")


def _check_corpus(corpus: Any) -> None:
    _require(isinstance(corpus, dict) and set(corpus) <= {"files"}, "corpus is no stamp")
    files = corpus.get("files", [])
    _require(isinstance(files, list), "the files of the corpus are no list")
    for file in files:
        _require(isinstance(file, dict), "a corpus file is no map")
        for key in file.keys() & _STAMP.keys():
            fits = isinstance(file[key], _STAMP[key]) and not isinstance(file[key], bool)
            _require(fits, f"the {key} of a corpus file is of a wrong type")
        _check_plain(file, "a corpus file")


def _check_directory(sections: Any) -> None:
    _require(isinstance(sections, dict), "sections is no map")
    for name, place in sections.items():
        is_name = isinstance(name, str) and _NAME.fullmatch(name)
        _require(is_name, "a section has no short name")
        is_pair = isinstance(place, list) and len(place) == 2
        is_place = is_pair and all(type(size) is int and size >= 0 for size in place)
        _require(is_place, f"section {name} has no offset and size")
    expected, _ = place_sections({name: size for name, (_, size) in sections.items()})
    _require(sections == expected, "the sections do not follow each other in order of their names")


def _check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Only what JSON has too, finite and not deeply nested."""
    _require(depth <= _DEEPEST, f"{where} is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            _require(isinstance(key, str), f"a key of {where} is no text")
            _check_plain(key, where, depth + 1)
            _check_plain(item, where, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, where, depth + 1)
    elif isinstance(value, str):
        _require(len(value) <= _LONGEST_TEXT, f"{where} has a very long text")
    elif isinstance(value, float):
        _require(isfinite(value), f"{where} has a number that is not finite")
    else:
        _require(value is None or isinstance(value, bool | int), f"{where} has a value of no kind")


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise HeaderError(otherwise)
