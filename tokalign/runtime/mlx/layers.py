"""The layers of a cache: taking positions back whatever their kind, and which ids they hold.

* Plain keys and values are trimmed.
* A ring that forgets (RotatingKVCache) is replaced by a `WindowCache` while a session uses it.
* A recurrent state (ArraysCache) cannot be trimmed. It is marked before each round, by reference,
  and goes back to the mark; ids accepted since then are read again with the next rows.

The ids that a cache holds are noted on the cache itself, so the note goes along where mlx-lm copies
or trims caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    RotatingKVCache,
)

from tokalign.runtime.mlx.window_cache import SLACK, WindowCache
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import UNBOUNDED, Array


class Layers:
    """The layers of one cache, a list that is changed in place. marked: the position to which
    recurrent states go back; None without any."""

    def __init__(self, layers: list[Any]) -> None:
        self.all = layers
        self.marked: int | None = None
        self._states: list[list[Array]] = []
        self._windows: list[WindowCache] = []
        self._is_open = False

    @property
    def unknown_kinds(self) -> list[str]:
        """The kinds of layers from which positions cannot be taken back."""
        leaves = (
            c for c in leaves_of(self.all) if not isinstance(c, ArraysCache | RotatingKVCache)
        )
        return sorted({type(c).__name__ for c in leaves if not _can_take_back(c, 0)})

    @cached_property
    def rewindable(self) -> int:
        """How many positions may be cached if some are to be taken back: only a ring that keeps its
        first positions (`max_kv_size`) has a bound, when it is full."""
        rings = (c for c in leaves_of(self.all) if isinstance(c, RotatingKVCache) and c.keep)
        return min((int(ring.max_size) - 1 for ring in rings), default=UNBOUNDED)

    def step(self, paced: int, block: int) -> int:
        """How many of the next `block` positions of a prompt a pass reads; `paced` of them, if rows
        see the same however it is cut. Where a model asks for masks that are wider than its caches,
        which is known after the first pass, they do not after the first window."""
        unknown = [window.max_size - 1 for window in self._windows if not window.widest]
        if self.rewindable != UNBOUNDED or any(w.widest > w.max_size for w in self._windows):
            return block
        return max(1, min([paced, *unknown]))

    def open(self) -> None:
        """Make the layers ready for a round."""
        if not self._is_open:
            self.all[:] = with_leaves(self.all, _opened)
            self._windows = [c for c in leaves_of(self.all) if isinstance(c, WindowCache)]
            self._is_open = True
        for window in self._windows:
            window.verifies = False

    def show_a_prompt_more(self, count: int) -> bool:
        """Whether a row after `count` positions may see more of them in a prompt than alone."""
        return any(window.widest != window.max_size <= count for window in self._windows)

    @property
    def can_hand_over(self) -> bool:
        """Whether mlx-lm's own functions could go on; if not, the context has to be read again."""
        return all(window.fills_ring for window in self._windows)

    def hand_over(self) -> None:
        """Leave the layers as mlx-lm's own functions know them."""
        self.all[:] = with_leaves(
            self.all, lambda leaf: leaf.to_rotating() if isinstance(leaf, WindowCache) else leaf
        )
        self._close()

    def renew(self, layers: Sequence[Any]) -> None:
        self.all[:] = layers
        self._close()
        self.open()

    def mark(self, positions: int) -> None:
        """A round begins after this many positions."""
        states = [list(c.cache) for c in leaves_of(self.all) if isinstance(c, ArraysCache)]
        if states:
            self.marked, self._states = positions, states
        for window in self._windows:
            window.verifies = True

    def take_back(self, count: int, *, held: int) -> int | None:
        """Take back the last `count` of `held` positions, or more where a mark lies further back.
        Returns: how many are left; None, with nothing changed, if it is not possible."""
        if (remaining := self.left_by(count, held=held)) is not None:
            recurrent, others = _parted(self.all)
            cut_back(others, held - remaining)
            for layer, state in zip(recurrent, self._states, strict=True):
                layer.cache = list(state)
        return remaining

    def left_by(self, count: int, *, held: int) -> int | None:
        """What `take_back` would return."""
        (recurrent, others), remaining = _parted(self.all), held - count
        if recurrent:
            if self.marked is None or self.marked > remaining:
                return None
            remaining = self.marked
        return remaining if can_cut_back(others, held - remaining) else None

    def _close(self) -> None:
        self.marked, self._states, self._windows, self._is_open = None, [], [], False


def leaves_of(layers: Sequence[Any]) -> list[Any]:
    """The caches in a list of layers, of which some hold several."""
    leaves: list[Any] = []
    for layer in layers:
        if isinstance(layer, CacheList):
            leaves += leaves_of(layer.caches)
        else:
            leaves.append(layer)
    return leaves


def _parted(layers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The recurrent states among the leaves, and the others."""
    leaves = leaves_of(layers)
    recurrent = [leaf for leaf in leaves if isinstance(leaf, ArraysCache)]
    return recurrent, [leaf for leaf in leaves if not isinstance(leaf, ArraysCache)]


def with_leaves(layers: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """A list of layers with other caches in the places of its leaves."""
    return [
        CacheList(*with_leaves(layer.caches, change))
        if isinstance(layer, CacheList)
        else change(layer)
        for layer in layers
    ]


def _opened(layer: Any) -> Any:
    if isinstance(layer, ConcatenateKVCache):
        _take_back(layer, 0)  # drops what mlx-lm has trimmed, which is still in there
    return WindowCache.from_rotating(layer) if becomes_window(layer) else layer


def becomes_window(layer: Any) -> bool:
    """Whether a session uses a `WindowCache` in the place of this cache."""
    return isinstance(layer, RotatingKVCache) and not layer.keep


def forgets(layers: Sequence[Any]) -> bool:
    """Whether caches of these kinds cannot be cut back to every prefix of what they have read."""
    kinds = (RotatingKVCache, WindowCache, ChunkedKVCache, ArraysCache)
    return any(isinstance(c, kinds) or not c.is_trimmable() for c in leaves_of(layers))


def can_cut_back(layers: Sequence[Any], count: int) -> bool:
    """Whether the last `count` positions can be taken back from what these caches hold now."""
    return all(_can_take_back(layer, count) for layer in leaves_of(layers))


def cut_back(layers: Sequence[Any], count: int) -> None:
    """Take the last `count` positions back. Only where that is possible."""
    for layer in leaves_of(layers) if count else ():
        _take_back(layer, count)


def _take_back(layer: Any, count: int) -> None:
    layer.trim(count)
    if isinstance(layer, ConcatenateKVCache) and layer.keys is not None:
        # Its trim only lowers the offset, and the next rows would come after what was dropped.
        layer.keys = layer.keys[..., : layer.offset, :]
        layer.values = layer.values[..., : layer.offset, :]


def _can_take_back(layer: Any, count: int) -> bool:
    if isinstance(layer, WindowCache):
        return layer.can_take_back(count)
    if isinstance(layer, ChunkedKVCache):  # a row sees its chunk from the beginning
        remaining = layer.offset - count
        return bool(layer.start_position <= remaining // layer.chunk_size * layer.chunk_size)
    return bool(layer.is_trimmable())


# -- which ids a cache holds -----------------------------------------------------------------------

_NOTE = "tokalign_ids"


class _Note(NamedTuple):
    """The ids that a cache held, and its recurrent states then if it has nothing else."""

    ids: tuple[int, ...]
    states: list[Array]


def remember(layers: Sequence[Any], ids: Sequence[int]) -> None:
    """Note on a cache which ids it holds, so that it can be continued by its content."""
    if layers:
        setattr(layers[0], _NOTE, _Note(tuple(ids), _states(layers)))


def remembered(layers: Sequence[Any]) -> list[int] | None:
    """The ids that a cache holds, if they were noted; what was trimmed since then is left out.

    None if the cache has read more since then. A cache that others have trimmed and then filled
    again to the same length cannot be told from one that they left alone.
    """
    note: _Note | None = getattr(layers[0], _NOTE, None) if layers else None
    if note is None:
        return None
    held = positions(layers)
    if held is None:
        now, then = _states(layers), note.states
        return list(note.ids) if len(now) == len(then) and all(map(is_, now, then)) else None
    return list(note.ids[:held]) if held <= len(note.ids) else None


def positions(layers: Sequence[Any]) -> int | None:
    """How many positions a cache holds; None if it has recurrent states alone."""
    return next((int(c.offset) for c in leaves_of(layers) if hasattr(c, "offset")), None)


def least_positions(layers: Sequence[Any]) -> int:
    """How many positions a cache holds, or 1 for some where recurrent states are all it has."""
    held = positions(layers)
    return int(not all(c.empty() for c in leaves_of(layers))) if held is None else held


_UNQUANTIZED = CacheOptions()


def expected_bytes(layers: Sequence[Any], ids: int, options: CacheOptions = _UNQUANTIZED) -> float:
    """The most bytes of a cache like this one while it comes to hold so many ids. It grows with
    them, up to a window or a chunk and what is kept besides; a recurrent state does not, and is
    held twice: as it is, and as a round's mark. Where it is quantized from a position on, it may
    have been larger before.

    layers: have read some ids, and may be quantized.
    """
    size = 0.0
    for layer in leaves_of(layers):
        if isinstance(layer, ArraysCache):
            size += 2 * layer.nbytes
            continue
        keys: Any = getattr(layer, "keys", None)
        quantized = isinstance(keys, list | tuple)
        of_numbers = keys[1] if quantized else keys  # the scales have the format of the numbers
        rows = getattr(layer, "offset", 1) if keys is None else of_numbers.shape[-2]
        whole, most, share = layer.nbytes / max(1, rows), min(ids, _most_rows(layer)), 1.0
        can_be = quantized or (keys is not None and hasattr(layer, "to_quantized"))
        if options.kv_bits is not None and can_be:
            share = options.kv_bits / 8 / of_numbers.dtype.size + 2 / options.kv_group_size
            whole = whole / share if quantized else whole
        before = min(most, options.quantized_kv_start)
        size += whole * (most if share == 1.0 or most == before else max(before, share * most))
    return size


def _most_rows(layer: Any) -> int:
    """How many positions a cache keeps at most."""
    if isinstance(layer, WindowCache):
        return layer.max_size + 2 * SLACK
    if isinstance(layer, ChunkedKVCache):
        return 2 * int(layer.chunk_size)
    return int(layer.max_size) if isinstance(layer, RotatingKVCache) else UNBOUNDED


def _states(layers: Sequence[Any]) -> list[Array]:
    """The arrays of a cache that counts no positions. A pass puts new arrays in their place."""
    if positions(layers) is not None:
        return []
    arrays = (value for _, value in tree_flatten([c.state for c in leaves_of(layers)]))
    return [value for value in arrays if isinstance(value, mx.array)]
