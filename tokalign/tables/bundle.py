"""The file of every table: its writer and its reader; `docs/table-format.md` has every byte.

    preamble | header (msgpack) | SHA-256 of both | sections | SHA-256 of all

`read_header` reads what tables are found by, in O(header). `read_bundle` reads a whole file into
memory and checks every byte. Files come from strangers, and a checksum only says that one arrived
as it was made: `header.py` checks the header, the methods of `Bundle` what is in sections.
Equal bundles give equal bytes: keys are sorted, and there are no timestamps.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import UnsupportedOperation
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import BundleError, MissingAssetError, UsageError, shown_path
from tokalign.storage import open_regular
from tokalign.tables.header import MOST_HEADER_BYTES, Header, encode_header, parse_header

MAGIC = b"tokalign"
FORMAT_VERSION = 3
MOST_BYTES = 1 << 32
"""A larger file is no table: it would be read into memory."""

OUTPUT_REMEDY = "give a folder that you may write to with --output"

_PREAMBLE = struct.Struct("<8sHHI")  # magic, format version, zero, header length
_DIGEST_SIZE = hashlib.sha256().digest_size
_REMEDY = "download it again or rebuild it with: tokalign build"

Section = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Header):
    """The content of a table file. sections: name -> content; views of the file that was read.
    Methods that read a section raise a BundleError with the names of file and section."""

    sections: Mapping[str, Section]

    def array(self, section: str, dtype: str, *, length: int | None = None) -> NDArray[Any]:
        """A section as an array, not copied if aligned. dtype: as in the file, such as "<u2"."""
        if section not in self.sections:
            raise self.wrong(f"the section {section} is missing")
        data = self.sections[section]
        if len(data) % np.dtype(dtype).itemsize:
            raise self.wrong(
                f"the section {section} has {len(data)} bytes, which is no whole number of {dtype}"
            )
        array = np.frombuffer(data, dtype=dtype)
        if length is not None and len(array) != length:
            raise self.wrong(f"the section {section} has {len(array)} values instead of {length}")
        return np.require(array, array.dtype.newbyteorder("="), "A")

    def ids(self, section: str, vocabulary_size: int) -> NDArray[np.uint16] | NDArray[np.uint32]:
        """The ids that `ids_section` wrote, of the width that the vocabulary's size asks for."""
        used, other = (2, 4) if vocabulary_size <= 1 << 16 else (4, 2)
        name, unused = (f"{section}.u{8 * width}" for width in (used, other))
        if unused in self.sections:
            raise self.wrong(
                f"the section {unused} is there, but ids below {vocabulary_size} are in {name}"
            )
        ids = self.array(name, f"<u{used}")
        self.check_ids(ids, vocabulary_size, name)
        return ids

    def check_ids(self, ids: NDArray[Any], limit: int, section: str, *, least: int = 0) -> None:
        if len(ids) and not least <= int(ids.min()) <= int(ids.max()) < limit:
            raise self.wrong(
                f"the section {section} has ids from {ids.min()} to {ids.max()}, outside a "
                f"vocabulary of {limit}"
            )

    def parts(self, section: str, dtype: str, *, of: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each part of a list of `of` values, by a section of their lengths."""
        lengths = self.array(section, dtype).tolist()
        if sum(lengths) != of:
            raise self.wrong(
                f"the lengths in the section {section} add up to {sum(lengths)}, not to {of}"
            )
        return pairwise(accumulate(lengths, initial=0))


def array_bytes(array: NDArray[Any]) -> bytes:
    """An array as it is stored: little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def ids_section(name: str, ids: NDArray[Any]) -> dict[str, bytes]:
    """A section of ids, u16 or u32; its name says which."""
    return {f"{name}.u{8 * ids.itemsize}": array_bytes(ids)}


# -- writing ---------------------------------------------------------------------------------------


def encode_bundle(bundle: Bundle) -> bytes:
    """The bytes of a file. Raises: TypeError for a header value that msgpack cannot store;
    UsageError for too many."""
    sections = {name: bundle.sections[name] for name in sorted(bundle.sections)}
    header = encode_header(bundle, {name: len(section) for name, section in sections.items()})
    if len(header) > MOST_HEADER_BYTES:
        raise UsageError(
            f"the table's header would have {len(header)} bytes of at most {MOST_HEADER_BYTES}; "
            "join the files of the corpus"
        )
    start = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, 0, len(header)) + header
    data = b"".join((start, hashlib.sha256(start).digest(), *sections.values()))
    return data + hashlib.sha256(data).digest()


# -- reading ---------------------------------------------------------------------------------------


def read_header(path: Path) -> Header:
    """What a table file says of itself; its sections are not read. Raises: as `read_bundle`."""
    name = shown_path(path)
    with _opened(path, name) as (_, _, header):
        return Header(**header, name=name)


def read_bundle(path: Path, *, name: str | None = None) -> Bundle:
    """Read a table file and check every byte of it. name: for messages; by default the path.
    Raises: BundleError as `decode_bundle`, and for what is no regular file; MissingAssetError."""
    name = name or shown_path(path)
    with _opened(path, name) as (file, start, _):
        return decode_bundle(start + file.read(), name=name)


def decode_bundle(data: bytes, *, name: str = "the table") -> Bundle:
    """Read the bytes of a file, every one of which is checked. The sections are views of `data`.
    Raises: BundleError for anything but a whole file of this version."""
    header, places = _decode_header(data, len(data), name)
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST_SIZE]).digest() != view[-_DIGEST_SIZE:]:
        raise BundleError(f"{name} is damaged: its checksum does not match; {_REMEDY}")
    sections = {section: view[place] for section, place in places.items()}
    return Bundle(**header, sections=sections, name=name)


@contextmanager
def _opened(path: Path, name: str) -> Iterator[tuple[BinaryIO, bytes, dict[str, Any]]]:
    """A table file, its start and its checked header, before memory is taken for the sections."""
    irregular = BundleError(f"{name} is no regular file of a table's size; give a .tok file")
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise irregular
            start = file.read(_PREAMBLE.size)
            start += file.read(_header_end(start, name) - len(start))
            header, _ = _decode_header(start, size, name)
            yield file, start, header
    except (IsADirectoryError, UnsupportedOperation) as error:
        raise irregular from error
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise MissingAssetError(
            f"{name}: {reason}; give an existing table, or make it with: tokalign build"
        ) from error


def _header_end(start: bytes, name: str) -> int:
    """Where the header and its digest end, by the preamble. Raises: BundleError."""
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise BundleError(
            f"{name} is not a tokalign table: it starts with {start[: len(MAGIC)]!r}, "
            f"not {MAGIC!r}; give a .tok file"
        )
    if len(start) < _PREAMBLE.size:
        raise _truncated(name, _PREAMBLE.size, len(start))
    _, version, reserved, length = _PREAMBLE.unpack_from(start)
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
    return int(_PREAMBLE.size + length + _DIGEST_SIZE)


def _decode_header(start: bytes, size: int, name: str) -> tuple[dict[str, Any], dict[str, slice]]:
    """A checked header, and where in the file each section lies. size: of the whole file, which has
    to be as the header says."""
    end = _header_end(start, name)
    if len(start) < end:
        raise _truncated(name, end, size)
    covered = end - _DIGEST_SIZE
    if hashlib.sha256(start[:covered]).digest() != start[covered:end]:
        raise BundleError(f"{name} is damaged: its header's checksum does not match; {_REMEDY}")
    try:
        header, places = parse_header(start[_PREAMBLE.size : covered])
    except ValueError as error:
        raise BundleError(f"{name} has a header that no table has: {error}; {_REMEDY}") from error
    places = {key: slice(end + at.start, end + at.stop) for key, at in places.items()}
    expected = max((place.stop for place in places.values()), default=end) + _DIGEST_SIZE
    if size < expected:
        raise _truncated(name, expected, size)
    if size > expected:
        raise BundleError(f"{name} has {size - expected} bytes after its end; {_REMEDY}")
    return header, places


def _truncated(name: str, expected: int, found: int) -> BundleError:
    return BundleError(f"{name} is truncated: {found} bytes of at least {expected}; {_REMEDY}")
