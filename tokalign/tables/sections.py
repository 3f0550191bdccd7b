"""The sections of a bundle as arrays and tries, used where they lie in the file.

Every reader here raises a BundleError that names the section and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marisa_trie
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


def read_ids(sections: Sections, name: str) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """The ids that `ids_section` wrote. Raises: BundleError."""
    if f"{name}.u16" in sections:
        return read_array(sections, f"{name}.u16", "<u2")
    if f"{name}.u32" in sections:
        return read_array(sections, f"{name}.u32", "<u4")
    raise BundleError(f"the section {name}.u16 or {name}.u32 is missing; {_REMEDY}")


def ids_section(name: str, ids: NDArray[Any]) -> dict[str, bytes]:
    """A section of ids, u16 or u32; its name says which."""
    return {f"{name}.u{8 * ids.itemsize}": array_bytes(ids)}


def read_trie(sections: Sections, name: str) -> marisa_trie.BinaryTrie:
    """A section as a trie. Its content is trusted: verify the file first. Raises: BundleError."""
    section = _find(sections, name)
    trie = _MappedTrie()
    try:
        trie.map(section)
    except RuntimeError as error:
        raise BundleError(f"the section {name} is no marisa trie; {_REMEDY}") from error
    trie.section = section
    return trie


class _MappedTrie(marisa_trie.BinaryTrie):  # type: ignore[misc]  # marisa_trie has no types
    """A trie that keeps its bytes alive, which marisa's own `map` does not."""

    __slots__ = ("section",)


def _find(sections: Sections, name: str) -> Section:
    if name not in sections:
        raise BundleError(f"the section {name} is missing; {_REMEDY}")
    return sections[name]
