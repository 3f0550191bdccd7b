"""Kept contexts: caches and outputs of earlier requests, with which later ones go on.

A conversation is one chain: caches after prefixes of its latest text. A cache that can be cut back
serves every prefix, so its chain has one. A cache that forgets (a window, a recurrent state, or
`--max-kv-size`) serves only what it ends with, so its chain has several: at the end of the system's
message, of the earlier turns, of the prompt and of the answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from tokalign.names.memory import machine_memory
from tokalign.runtime.mlx.layers import can_cut_back, cut_back, leaves_of, positions
from tokalign.runtime.rounds import common_prefix

_SHARE_OF_MEMORY = 10
"""Kept contexts take this part of the machine's memory where no bound is given."""

_MOST_STATES = 5
"""Caches kept of one conversation. The end of the system's message is dropped last."""

_TAIL = 16
"""Most ids at a prompt's end that a later turn may lack, such as `<think>`; at most an eighth."""


class Held(NamedTuple):
    """The target's KV cache (None if nothing is held) and exactly the ids that it holds.

    draft: the draft model's layers, which know their ids themselves (`layers.remembered`).
    """

    layers: list[Any] | None
    ids: list[int]
    draft: Sequence[Any] = ()


NOTHING = Held(None, [])


@dataclass(slots=True, eq=False)
class _State:
    """Caches of both models after some ids. is_shared: whether other conversations begin so."""

    layers: list[Any]
    draft: list[Any]
    is_shared: bool

    @property
    def nbytes(self) -> int:
        return sum(int(layer.nbytes) for layer in (*self.layers, *self.draft))


@dataclass(slots=True, eq=False)
class Chain:
    """The contexts of one conversation.

    owner: whose it is; it serves nobody else. prompt: how many ids the prompt of its latest request
    has. ids: its longest text. states: by how many of these ids they hold.
    """

    owner: Hashable
    prompt: int
    ids: list[int] = field(default_factory=list)
    states: dict[int, _State] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in list(self.states.values()))  # any thread may ask

    def best(self, ids: list[int]) -> tuple[int, int]:
        """How many of `ids` a state serves, leaving one at least to read; and which state."""
        most = min(common_prefix(self.ids, ids), len(ids) - 1)
        best = (0, 0)
        for length, state in self.states.items():
            if length <= most:
                best = max(best, (length, length))
            elif most and can_cut_back([*state.layers, *state.draft], length - most):
                best = max(best, (most, length))
        return best

    def goes_on(self, other: Chain) -> bool:
        """Whether `other` is an earlier turn of this conversation, or a part of it."""
        common = common_prefix(self.ids, other.ids)
        tail = min(_TAIL, other.prompt // 8)
        is_later = self.prompt > other.prompt and common >= other.prompt - tail
        return common == len(other.ids) or is_later

    def take_over(self, other: Chain) -> None:
        """Take over the states that this request can have begun with: all of the same prompt, the
        longest of an earlier turn, and those that any conversation may share.
        """
        common = common_prefix(self.ids, other.ids)
        for length, state in self.states.items():
            if length > common and can_cut_back(state.layers, length - common):
                return
        lengths = [length for length in other.states if length <= min(common, self.prompt - 1)]
        for length in lengths:
            is_longest = length == max(lengths)
            if other.states[length].is_shared or is_longest or other.prompt == self.prompt:
                self.states.setdefault(length, other.states[length])

    def thin_out(self) -> None:
        """Drop states that serve hardly more than another one, and those that are too many."""
        for length in sorted(self.states)[:-1]:
            if any(0 < length - other <= _TAIL for other in self.states):
                del self.states[length]
        while len(self.states) > _MOST_STATES:
            del self.states[min(self.states, key=lambda n: (self.states[n].is_shared, n))]


class Contexts:
    """The chains of all conversations, apart for every owner; the least recently used goes first.

    size: how many are kept. most_bytes: None for a tenth of the machine's memory.
    """

    def __init__(self, *, size: int, most_bytes: int | None) -> None:
        self._size = size
        self._most_bytes = (
            machine_memory() // _SHARE_OF_MEMORY if most_bytes is None else most_bytes
        )
        self._chains: list[Chain] = []  # the most recently used last

    def clear(self) -> None:
        self._chains.clear()

    @property
    def nbytes(self) -> int:
        return sum(chain.nbytes for chain in list(self._chains))

    def fetch(self, owner: Hashable, ids: Sequence[int]) -> Held:
        """A copy of the caches that share the most with `ids`, cut back to what they share.

        At least one id is left for the target to read. The draft's cache is cut back as much.
        """
        ids = list(ids)
        own = [(chain.best(ids), chain) for chain in self._chains if chain.owner == owner]
        (kept, length), chain = max(own, key=itemgetter(0), default=((0, 0), None))
        if chain is None or not kept:
            return NOTHING
        self._use(chain)
        state = chain.states[length]
        layers, draft = deepcopy((state.layers, state.draft))
        cut_back([*layers, *draft], max(0, length - kept))
        return Held(layers, ids[:kept], draft)

    def keep(self, chain: Chain, held: Held, *, is_shared: bool = False) -> None:
        """Keep caches of a request's chain. is_shared: whether other conversations begin so."""
        if not held.layers or not held.ids:
            return
        draft = list(held.draft) if held.draft and can_cut_back(held.draft, 1) else []
        _compact([*held.layers, *draft])
        length = len(held.ids)
        if length >= len(chain.ids):
            chain.ids = list(held.ids)
        for shorter in [n for n in chain.states if n < length]:
            if can_cut_back(held.layers, length - shorter):
                del chain.states[shorter]
        chain.states[length] = _State(held.layers, draft, is_shared)
        for other in list(self._chains):
            if other is not chain and other.owner == chain.owner and chain.goes_on(other):
                chain.take_over(other)
                self._chains.remove(other)
        chain.thin_out()
        self._use(chain)
        del self._chains[: -self._size]
        self.leave_room(0)

    def leave_room(self, active_bytes: float, *, most: float | None = None) -> None:
        """Drop what exceeds the bound, or `most`, together with the caches that are in use."""
        most = self._most_bytes if most is None else most
        while self._chains and self.nbytes + active_bytes > most:
            del self._chains[0]

    def check(self) -> None:
        """Every cache holds as many positions as it is kept for."""
        for chain in self._chains:
            for length, state in chain.states.items():
                held = positions(state.layers)
                assert length <= len(chain.ids), (length, len(chain.ids))
                assert held in (None, length), (held, length)

    def _use(self, chain: Chain) -> None:
        if chain in self._chains:
            self._chains.remove(chain)
        self._chains.append(chain)


def _compact(layers: Sequence[Any]) -> None:
    """Free what a cache keeps alive beyond what it holds.

    That is room for up to 255 more positions, all positions of the prompt that filled a ring, and
    the arrays of a whole batch until a cache that was taken out of it is computed. One layer after
    another is copied, so that memory has to have room for one.
    """
    for layer in leaves_of(layers):
        if type(layer) is KVCache and layer.keys is not None:
            _cut(layer, slice(0, layer.offset))
        if type(layer) is RotatingKVCache and not layer.keep and layer.keys is not None:
            rows, most = layer.keys.shape[2], layer.max_size
            if layer._idx == rows > most:  # all are in their order
                _cut(layer, slice(rows - most, rows))
                layer._idx = most
        mx.eval(layer.state)


def _cut(layer: Any, positions: slice) -> None:
    layer.keys = mx.contiguous(layer.keys[..., positions, :])
    layer.values = mx.contiguous(layer.values[..., positions, :])
