"""The file format of every table; `docs/table-format.md` describes it byte for byte.

    preamble | header (msgpack) | SHA-256 of both | sections, aligned for mmap | SHA-256 of all

Opening a file reads the preamble and the header, which has its own checksum and says how long the
file is; only `verify` reads every byte. Equal bundles give equal bytes: keys are sorted, and there
are no timestamps. `encode_bundle` and `decode_bundle` are pure; `open_bundle` and `write_bundle` do
I/O. To read on: `sections` for what is inside, `opening` for who opens which file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.arguments import shown_path
from tokalign.atomic_file import write_file
from tokalign.errors import BundleError, FingerprintError, MissingAssetError, UsageError
from tokalign.tables.header import (
    ALIGNMENT,
    MOST_HEADER_BYTES,
    HeaderError,
    parse_header,
    place_sections,
    read_parameter,
)
from tokalign.tables.sections import Section

MAGIC = b"tokalign"
FORMAT_VERSION = 2
MOST_BYTES = 1 << 32
"""A larger file is no table: it would be read into memory."""

OUTPUT_REMEDY = "give a folder that you may write to with --output"

_PREAMBLE = struct.Struct("<8sHHI")  # magic, format version, zero, header length
_DIGEST_SIZE = hashlib.sha256().digest_size
_REMEDY = "download it again or rebuild it with: tokalign build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The content of a table file.

    kind: "dictionary" or "alignment".
    fingerprints: of the tokenizers it was built for: "target", and "draft" for an alignment.
    corpus: the stamp of the text that was counted (see `build.corpus`); empty if there was none.
    parameters: every choice that decided the content. statistics: what was counted.
    sections: name -> content. In an opened bundle they are views of the file.
    """

    kind: str
    fingerprints: Mapping[str, str]
    corpus: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Section]


def encode_bundle(bundle: Bundle) -> bytes:
    """The bytes of a file.

    Raises: TypeError for a header value that msgpack cannot store; UsageError for too many of them.
    """
    sizes = {name: len(section) for name, section in bundle.sections.items()}
    directory, length = place_sections(sizes)
    header = msgpack.packb(
        _sorted(
            {
                "kind": bundle.kind,
                "fingerprints": bundle.fingerprints,
                "corpus": bundle.corpus,
                "parameters": bundle.parameters,
                "statistics": bundle.statistics,
                "sections": directory,
            }
        )
    )
    if len(header) > MOST_HEADER_BYTES:
        raise UsageError(
            f"the table's header would have {len(header)} bytes of at most {MOST_HEADER_BYTES}; "
            "join the files of the corpus"
        )
    data = bytearray(_PREAMBLE.pack(MAGIC, FORMAT_VERSION, 0, len(header)) + header)
    data += hashlib.sha256(data).digest()
    start = _aligned(len(data))
    data += bytes(start + length - len(data))
    for name, (offset, size) in directory.items():
        data[start + offset : start + offset + size] = bundle.sections[name]
    return bytes(data + hashlib.sha256(data).digest())


def decode_bundle(
    data: bytes | memoryview, *, name: str = "<bytes>", verify: bool = True
) -> Bundle:
    """Read the bytes of a file. The sections are views of `data`; nothing is copied.

    verify: check every byte against the SHA-256 at the end. Otherwise only the preamble, the header
    and the length are checked, in O(header).
    Raises: BundleError, with `name` and the remedy, for anything but a whole file of this version.
    """
    view = memoryview(data).toreadonly()
    header, start = _read_header(view, name)
    return _read_sections(view, header, start, name, verify=verify)


def open_bundle(path: Path, *, verify: bool = False) -> Bundle:
    """Read the header of a table file; with `verify` also all the rest, every byte of it checked.

    A verified bundle is a copy in memory, which nobody else can change. Otherwise its sections are
    views of the file, good for their sizes only.
    Raises: BundleError as `decode_bundle`, and for what is no regular file; MissingAssetError for
    an unreadable file.
    """
    name = shown_path(path)
    irregular = BundleError(f"{name} is no regular file of a table's size; give a .tok file")
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                raise irregular
            size = status.st_size
            view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b"")
            header, start = _read_header(view, name)
            bundle = _read_sections(view, header, start, name, verify=False)
            if verify:  # not before the header shows that a whole table may be there
                copy = memoryview(file.read(size))
                bundle = _read_sections(copy, header, start, name, verify=True)
            return bundle
    except IsADirectoryError as error:
        raise irregular from error
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise MissingAssetError(
            f"{name}: {reason}; give an existing table, or make it with: tokalign build"
        ) from error


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; without O_NONBLOCK, a FIFO that nobody writes to would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write a table file, whole or not at all. Raises: UsageError; OutputError for a full disk."""
    write_file(path, encode_bundle(bundle), parents=True, remedy=OUTPUT_REMEDY)


def require_fingerprint(
    bundle: Bundle, *, target: str, draft: str | None = None, name: str, remedy: str
) -> None:
    """Refuse a table that was built for other tokenizers.

    target, draft: the fingerprints of the tokenizers in use; `draft` is None for a dictionary.
    name: of the table, for the message. remedy: the command that rebuilds it.
    Raises: FingerprintError.
    """
    for role, found in (("target", target), ("draft", draft)):
        expected = bundle.fingerprints.get(role)
        if found is not None and expected is not None and expected != found:
            raise FingerprintError(
                f"{name} ({role})", expected=expected, found=found, remedy=remedy
            )


def read_vocabulary_size(bundle: Bundle, expected: int | None, *, name: str, remedy: str) -> int:
    """The vocabulary size that a table of target ids is for, as its header says.

    expected: of the tokenizer in use; by default, what the header says is believed. name: of the
    table, for the message. remedy: the command that rebuilds it.
    Raises: BundleError if it is missing or another one.
    """
    try:
        said = read_parameter(bundle.parameters, "vocabulary_size", int, least=1, most=1 << 32)
    except HeaderError as error:
        raise BundleError(f"{name}'s header is wrong: {error}; {remedy}") from error
    if expected not in (None, said):
        raise BundleError(f"{name} is for a vocabulary of {said} ids, not {expected}; {remedy}")
    return int(said)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _sorted(value: Any) -> Any:
    """`value` with the keys of all mappings in it sorted, so that equal values give equal bytes."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value


def _read_header(view: memoryview, name: str) -> tuple[dict[str, Any], int]:
    """The checked header, and the offset at which the sections start."""
    if view[: len(MAGIC)] != MAGIC[: len(view)]:
        raise BundleError(
            f"{name} is not a tokalign table: it starts with {bytes(view[: len(MAGIC)])!r}, "
            f"not {MAGIC!r}; give a .tok file"
        )
    if len(view) < _PREAMBLE.size:
        raise _truncated(name, _PREAMBLE.size, len(view))
    _, version, reserved, length = _PREAMBLE.unpack_from(view)
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{name} has format version {version}, this tokalign reads version {FORMAT_VERSION}; "
            "rebuild it with: tokalign build"
        )
    if reserved or length > MOST_HEADER_BYTES:
        raise BundleError(
            f"{name} begins as no table does: bytes 10 and 11 are {reserved}, not 0, or the header "
            f"has {length} bytes of at most {MOST_HEADER_BYTES}; {_REMEDY}"
        )
    end = _PREAMBLE.size + length
    if len(view) < end + _DIGEST_SIZE:
        raise _truncated(name, end + _DIGEST_SIZE, len(view))
    if hashlib.sha256(view[:end]).digest() != view[end : end + _DIGEST_SIZE]:
        raise BundleError(f"{name} is damaged: its header's checksum does not match; {_REMEDY}")
    try:
        header = parse_header(view[_PREAMBLE.size : end])
    except HeaderError as error:
        raise BundleError(f"{name} has a header that no table has: {error}; {_REMEDY}") from error
    return header, _aligned(end + _DIGEST_SIZE)


def _read_sections(
    view: memoryview, header: Mapping[str, Any], start: int, name: str, *, verify: bool
) -> Bundle:
    """The bundle of a checked header whose sections start at `start`. Raises: BundleError."""
    sections = _cut_sections(view, header["sections"], start, name)
    if verify and hashlib.sha256(view[:-_DIGEST_SIZE]).digest() != view[-_DIGEST_SIZE:]:
        raise BundleError(f"{name} is damaged: its checksum does not match; {_REMEDY}")
    return Bundle(**{**header, "sections": sections})


def _cut_sections(
    view: memoryview, directory: Mapping[str, Sequence[int]], start: int, name: str
) -> dict[str, memoryview]:
    """The sections as views. The file must end right after the digest that follows the last one."""
    end = max((offset + size for offset, size in directory.values()), default=0)
    expected = start + end + _DIGEST_SIZE
    if len(view) < expected:
        raise _truncated(name, expected, len(view))
    if len(view) > expected:
        raise BundleError(f"{name} has {len(view) - expected} bytes after its end; {_REMEDY}")
    return {
        section: view[start + offset : start + offset + size]
        for section, (offset, size) in directory.items()
    }


def _truncated(name: str, expected: int, found: int) -> BundleError:
    return BundleError(f"{name} is truncated: {found} bytes of at least {expected}; {_REMEDY}")
