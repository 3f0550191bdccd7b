"""The sections of a bundle as arrays, used where they lie, and checks of what is in them.

Every reader here raises a BundleError that names the section and says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import BundleError

Section = bytes | memoryview
Sections = Mapping[str, Section]

_REMEDY = "rebuild the table with: tokalign build"


def read_array(sections: Sections, name: str, dtype: str) -> NDArray[Any]:
    """A section as an array in the machine's byte order; no copy on little-endian machines.

    dtype: as in the file, such as "<u2". Raises: BundleError.
    """
    section = _find(sections, name)
    try:
        array = np.frombuffer(section, dtype=dtype)
    except ValueError as error:
        raise BundleError(
            f"the section {name} has {len(section)} bytes, which is no whole number of {dtype}; "
            f"{_REMEDY}"
        ) from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def array_bytes(array: NDArray[Any]) -> bytes:
    """An array as it is stored: little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def read_ids(
    sections: Sections, name: str, vocabulary_size: int
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """The ids that `ids_section` wrote, of the width that the vocabulary's size asks for.

    Raises: BundleError if the section is missing, if one of the other width is there, and for an id
    outside the vocabulary.
    """
    used, other = ("u2", "u4") if vocabulary_size <= 1 << 16 else ("u4", "u2")
    names = {width: f"{name}.u{8 * int(width[1])}" for width in (used, other)}
    if names[other] in sections:
        raise BundleError(
            f"the section {names[other]} is there, but a vocabulary of {vocabulary_size} ids has "
            f"{names[used]}; {_REMEDY}"
        )
    ids = read_array(sections, names[used], f"<{used}")
    check_ids(ids, vocabulary_size, names[used])
    return ids


def ids_section(name: str, ids: NDArray[Any]) -> dict[str, bytes]:
    """A section of ids, u16 or u32; its name says which."""
    return {f"{name}.u{8 * ids.itemsize}": array_bytes(ids)}


def check_ids(ids: NDArray[Any], limit: int, name: str, *, least: int = 0) -> None:
    """Raises: BundleError if one of `ids` is not from `least` to below `limit`."""
    if len(ids) and not least <= int(ids.min()) <= int(ids.max()) < limit:
        raise BundleError(
            f"the section {name} has ids from {ids.min()} to {ids.max()}, outside a vocabulary of "
            f"{limit}; {_REMEDY}"
        )


def check_length(array: NDArray[Any], expected: int, name: str) -> None:
    """Raises: BundleError if there are not `expected` values."""
    if len(array) != expected:
        raise BundleError(
            f"the section {name} has {len(array)} values instead of {expected}; {_REMEDY}"
        )


def read_parts(sections: Sections, name: str, dtype: str, *, of: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each part of a list of `of` values, from a section with the parts' lengths.

    Raises: BundleError if the lengths do not add up to `of`.
    """
    lengths = read_array(sections, name, dtype).tolist()
    if sum(lengths) != of:
        raise BundleError(
            f"the lengths in the section {name} add up to {sum(lengths)}, not to {of}; {_REMEDY}"
        )
    return pairwise(accumulate(lengths, initial=0))


def _find(sections: Sections, name: str) -> Section:
    if name not in sections:
        raise BundleError(f"the section {name} is missing; {_REMEDY}")
    return sections[name]
