"""One file of a kept context, in the format safetensors: its header, its arrays, and caches taken
apart and put together. Its name has a digest, so that one that was cut or changed is noticed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tokalign.runtime.mlx.layers import leaves_of, with_leaves

_FORMAT = "tokalign-context 2"
SUFFIX = ".safetensors"

BY_POSITION = (KVCache, QuantizedKVCache)
KINDS = {
    kind.__name__: kind
    for kind in (*BY_POSITION, *(RotatingKVCache, ArraysCache, ChunkedKVCache, ConcatenateKVCache))
}
"""Kinds of caches whose `state` is all of them. The first ones are cut into positions."""

UNUSABLE = (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError, IndexError)
"""What reading a file of another content raises, in the libraries or here."""


@dataclass(slots=True, eq=False)
class ContextFile:
    """A file's header. begin: the first position in it; those before are in the file `parent`.

    ids: u32, all of them from the first on. kinds: of the leaves. draft: the key of the draft
    model's context. path: None until it is written.
    """

    key: str
    parent: str
    begin: int
    ids: NDArray[np.uint32]
    kinds: list[str]
    draft: str
    path: Path | None = None

    def serves(self, ids: NDArray[np.uint32]) -> int:
        """How many of these ids a cache that is made of it holds."""
        common = common_ids(self.ids, ids)
        is_by_position = all(issubclass(KINDS[kind], BY_POSITION) for kind in self.kinds)
        return common if is_by_position or common == len(self.ids) else 0

    @property
    def header(self) -> dict[str, str]:
        fields = [self.key, self.parent, self.begin, self.kinds, self.draft]
        return {"format": _FORMAT, "node": json.dumps(fields)}


def read_header(path: Path) -> ContextFile:
    """Raises: what is in `UNUSABLE`."""
    with safe_open(path, "numpy") as file:
        header = file.metadata() or {}
        if header.get("format") != _FORMAT:
            raise ValueError("it is of another format")
        key, parent, begin, kinds, draft = json.loads(header["node"])
        ids = file.get_tensor("ids")
    fits = path.name.startswith(f"{key}-") and 0 <= begin < len(ids) and (begin > 0) == bool(parent)
    if not fits or not set(kinds) <= KINDS.keys():
        raise ValueError("its parts do not belong together")
    return ContextFile(key, parent, begin, ids, kinds, draft, path)


def digest_of(path: Path) -> str:
    """The digest in a file's name. Raises: OSError."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:32]


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays of a file, and its header. Raises: ValueError for one that has changed; OSError
    for one that cannot be read now."""
    if digest_of(path) != path.stem.partition("-")[2]:
        raise ValueError("its digest is another one")
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
    except RuntimeError as error:  # such as for too many open files: what it holds is right
        raise OSError(str(error)) from error
    arrays, header = loaded
    del arrays["ids"]
    return arrays, header


def taken_apart(leaves: list[Any], begin: int, end: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and what is no array; of layers by position only those from `begin` on."""
    arrays: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for index, leaf in enumerate(leaves):
        cut = isinstance(leaf, BY_POSITION)
        state = {"0": leaf.keys, "1": leaf.values} if cut else leaf.state
        for place, value in tree_flatten(state):
            if isinstance(value, mx.array):
                value = value[..., begin:end, :] if cut else value
                arrays[f"{index}.{place}"] = mx.contiguous(value)
            else:
                rest[f"{index}.{place}"] = value
        if isinstance(leaf, QuantizedKVCache):
            rest |= {f"{index}.2": leaf.group_size, f"{index}.3": leaf.bits}
    return arrays, rest


def put_together(
    layers: list[Any], kinds: list[str], values: dict[str, Any], length: int
) -> list[Any]:
    """Layers with these states. layers: new ones, which say where the leaves belong."""
    states = tree_unflatten(list(values.items()))
    leaves: list[Any] = []
    for kind, state, new in zip(kinds, states, leaves_of(layers), strict=True):
        if kind not in (type(new).__name__, QuantizedKVCache.__name__):
            raise ValueError(f"it has a {kind} in the place of a {type(new).__name__}")
        if issubclass(KINDS[kind], BY_POSITION):
            state = (*state[:2], length, *state[2:])
        leaves.append(KINDS[kind].from_state(state))
    remaining = iter(leaves)
    return with_leaves(layers, lambda _: next(remaining))


def common_ids(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> int:
    """How many leading ids agree."""
    count = min(len(left), len(right))
    differ = left[:count] != right[:count]
    return int(differ.argmax()) if differ.any() else count
