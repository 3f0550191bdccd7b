"""The header of a table file, its schema, and the kinds of tables. No other header is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from sys import float_info
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta, Struct

from tokalign.errors import BundleError, FingerprintError
from tokalign.tables.dictionary import LANGUAGE

MOST_HEADER_BYTES = 1 << 21
"""A longer header is no table's: it would take seconds to check. A corpus file takes about 200."""


class Kind(NamedTuple):
    """A kind of tables. roles: of its tokenizers. entries: the statistic that counts entries."""

    roles: tuple[str, ...]
    entries: str


KINDS: Mapping[str, Kind] = {
    "dictionary": Kind(("target",), "entries"),
    "alignment": Kind(("draft", "target"), "intersection_pairs"),
    "logits": Kind(("target",), "rows"),
    "pack": Kind((), "ngrams"),
}

_MOST_OF_SAMPLE = 1 << 20
"""Bytes of a text that comes with tokalign; another of its name may be large."""

_Name = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,64}\Z")]
_Language = Annotated[str, Meta(pattern=rf"^{LANGUAGE.pattern}\Z")]  # it names files
_Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Text = Annotated[str, Meta(max_length=4096)]
_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_Size = Annotated[int, Meta(ge=0)]
_Value = bool | int | _Finite | _Text | None
_Deepest = _Value | list[_Value] | dict[_Text, _Value]
_Deep = _Value | list[_Deepest] | dict[_Text, _Deepest]
_Plain = _Value | list[_Deep] | dict[_Text, _Deep]


class FileStamp(TypedDict, total=False):
    """What was read from a corpus file. The same file has the same stamp in any folder.

    weight: how many times each occurrence counts. bytes, sha256: of the file as it lies on disk.
    lines: texts; skipped: lines that could not be read. private: so the table is not shared.
    """

    name: _Text
    weight: _Finite
    bytes: _Size
    sha256: _Text
    text_bytes: _Size
    lines: _Size
    skipped: _Size
    private: bool


class _Schema(Struct, forbid_unknown_fields=True):
    """The header as it lies in a file. sections: the bytes that each takes."""

    kind: _Name
    fingerprints: dict[str, _Fingerprint]
    corpus: dict[Literal["files"], list[FileStamp]]
    parameters: dict[_Text, _Plain]
    statistics: dict[_Text, _Plain]
    sections: dict[_Name, _Size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a table file says of itself.

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
        return str(self.parameters.get("language", "unnamed"))

    @property
    def is_of_sample(self) -> bool:
        """Whether it is a dictionary of no more than the text that comes with tokalign in its
        language, a few pages."""
        files = self.corpus.get("files", [])
        is_small = all(file.get("bytes", 0) < _MOST_OF_SAMPLE for file in files)
        names = [file.get("name") for file in files]
        return self.kind == "dictionary" and names == [f"{self.language}-mini.txt"] and is_small

    def require_kind(self, kind: str) -> None:
        if self.kind != kind:
            raise BundleError(
                f"{self.name} is a table of kind {self.kind}; give a .{kind}.tok file"
            )

    def require(self, *, target: str, draft: str | None = None, remedy: str) -> None:
        """Raises: FingerprintError for a table of other tokenizers. remedy: rebuilds it."""
        for role, found in (("target", target), ("draft", draft)):
            expected = self.fingerprints.get(role)
            if found is not None and expected is not None and expected != found:
                raise FingerprintError(
                    f"{self.name} ({role})", expected=expected, found=found, remedy=remedy
                )

    def number(
        self, name: str, *, most: float, least: float = 0, kind: type[int] | type[float] = int
    ) -> Any:
        """A number among the parameters, or else the statistics. Raises: BundleError unless it is
        from `least` to `most`."""
        value: Any = self.parameters.get(name, self.statistics.get(name))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or kind(value) != value:
            raise self.wrong(f"its header's {name} is missing or no {kind.__name__}")
        if not least <= value <= most:
            raise self.wrong(f"its header's {name} is {value}, not from {least} to {most}")
        return kind(value)

    def vocabulary_size(self, expected: int | None = None) -> int:
        """The vocabulary size that a table is for. Raises: BundleError if it is missing or not the
        expected one."""
        size = int(self.number("vocabulary_size", least=1, most=1 << 32))
        if expected not in (None, size):
            raise self.wrong(f"it is for a vocabulary of {size} ids, not {expected}")
        return size

    def wrong(self, what: str) -> BundleError:
        """The error about a table that no builder makes."""
        return BundleError(f"{self.name}: {what}; rebuild the table with: tokalign build")


_ENCODER = msgspec.msgpack.Encoder(order="sorted")
_DECODER = msgspec.msgpack.Decoder(_Schema)


def encode_header(header: Header, sections: Mapping[str, int]) -> bytes:
    """The bytes of a header and of the sizes of its sections. Raises: TypeError for what msgpack
    cannot store."""
    values = {name: getattr(header, name) for name in _Schema.__struct_fields__[:-1]}
    return _ENCODER.encode({**values, "sections": sections})


def parse_header(data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, slice]]:
    """The header in these bytes, every rule of the schema checked, and the place of each section.

    The places are counted from the end of the header; sections lie in the order of their names.
    Raises: ValueError, which says what breaks the schema.
    """
    try:
        parsed = _DECODER.decode(data)
        msgspec.convert(parsed.parameters.get("language", "unnamed"), _Language)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    header = msgspec.structs.asdict(parsed)
    # A key that is there twice, or a number in more bytes than it takes, could hide something.
    if _ENCODER.encode(header) != data:
        raise ValueError("it is not as encode_header writes it")
    kind = KINDS.get(parsed.kind)
    if kind is not None and set(kind.roles) != parsed.fingerprints.keys():
        raise ValueError(f"its fingerprints are not those of a table of kind {parsed.kind}")
    sizes = header.pop("sections")
    bounds = pairwise(accumulate(sizes.values(), initial=0))
    return header, {name: slice(*bound) for name, bound in zip(sizes, bounds, strict=True)}
