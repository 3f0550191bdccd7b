"""The dictionary as DictSpec publishes it: context -> one whole continuation.

A marisa trie has the contexts' ids in *reverse*, so that one query finds every stored suffix of the
text, and all continuations are in one pool of ids. The file has the contexts as plain ids and the
trie is made from them when the table is opened: marisa trusts every byte of a stored trie, and a
forged one can crash the process. `docs/table-format.md` has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import cast

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from tokalign.tables.bundle import Bundle, array_bytes, ids_section
from tokalign.tables.dictionary import MAX_CONTEXT, MAX_CONTINUATION, SOURCE, Ids
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

KIND = "dictspec"

_Packer = Callable[..., bytes]
_TYPE_CODES = {2: "H", 4: "I"}


@dataclass(frozen=True, slots=True)
class Continuation:
    """What the table expects next.

    ids: the expected ids, 1 to 8. probability: that the first of them follows, estimated from the
    counted n-grams. matched: the length of the stored context, 1 to 8 ids.
    """

    ids: Ids
    probability: float
    matched: int


class DictSpecTable:
    """Text -> the best continuation, by the longest stored suffix.

    trie: the contexts in reverse, each id as little-endian u16 or u32, as in the pool.
    locators: u32[entries] by key number, `start in pool << 3 | length - 1`.
    probabilities: u8[entries] by key number, in 1/255.
    pool: u16[] if the vocabulary has at most 65,536 ids, else u32[].
    """

    def __init__(
        self,
        *,
        trie: marisa_trie.BinaryTrie,
        locators: NDArray[np.uint32],
        probabilities: NDArray[np.uint8],
        pool: NDArray[np.uint16] | NDArray[np.uint32],
    ) -> None:
        # Indexing a memoryview gives a plain Python int, several times faster than an array.
        self._trie = trie
        self._locators = locators.data
        self._probabilities = probabilities.data
        self._pool = pool.data
        self._width = pool.itemsize
        self._packers = _packers(self._width)

    def __len__(self) -> int:
        """The number of stored contexts."""
        return len(self._locators)

    def longest_match(self, suffix: Sequence[TargetId]) -> Continuation | None:
        """The continuation of the longest stored suffix of `suffix`; None if none is stored.

        Only the last 8 ids count. Cost: about 2 µs, whatever the number of entries.
        """
        tail = suffix[-MAX_CONTEXT:][::-1]
        try:
            key = self._packers[len(tail)](*tail)
        except struct.error:  # an id that only a padded model has ends what can be stored
            known = next(n for n, token in enumerate(tail) if token >> 8 * self._width)
            key = self._packers[known](*tail[:known])
        found = self._trie.prefixes(key)
        return self._read(found[-1]) if found else None

    def match_length(self, suffix: Sequence[TargetId]) -> int:
        """See `Dictionary`."""
        found = self.longest_match(suffix)
        return 0 if found is None else found.matched

    def expected(self, suffix: Sequence[TargetId]) -> Sequence[tuple[TargetId, float]]:
        """See `Dictionary`. Where no context matches, a longer continuation goes on."""
        tail = list(suffix)
        for taken in range(min(len(tail), MAX_CONTINUATION)):
            found = self.longest_match(tail[: len(tail) - taken])
            if found is None or list(found.ids[:taken]) != tail[len(tail) - taken :]:
                continue
            if len(found.ids) > taken:
                p = min(max(found.probability, 0.002), 0.998)
                return ((found.ids[taken], log(p / (1.0 - p))),)
        return ()

    def follow(
        self, suffix: Sequence[TargetId], limit: int, *, p_min: float | None = None
    ) -> TokenTree[TargetId]:
        """The continuation of the longest stored suffix, if its first id is as probable as `p_min`.

        Only the first id's probability is stored, so every id gets it.
        """
        found = self.longest_match(suffix)
        if found is None or (p_min is not None and found.probability < p_min):
            return EMPTY_TREE
        ids = found.ids[:limit]
        return TokenTree.chain(ids, SOURCE, (found.probability,) * len(ids))

    def items(self) -> Iterator[tuple[Ids, Continuation]]:
        """All contexts with their continuations, in the order of the trie's keys."""
        for key, ids in self._keys():
            yield ids, self._read(key)

    def _keys(self) -> Iterator[tuple[bytes, Ids]]:
        """The trie's keys, and the contexts that they stand for."""
        for key in self._trie.iterkeys():
            count = len(key) // self._width
            ids = struct.unpack(f"<{count}{_TYPE_CODES[self._width]}", key)
            yield key, cast("Ids", ids[::-1])

    def to_sections(self) -> dict[str, bytes]:
        """The sections of a bundle that hold this table, its contexts in the order of their ids."""
        entries = sorted((ids, self._trie[key]) for key, ids in self._keys())
        numbers = [number for _, number in entries]
        contexts = np.array([i for ids, _ in entries for i in ids], dtype=f"u{self._width}")
        return {
            "continuations.context_lengths": bytes(len(ids) for ids, _ in entries),
            "continuations.locators": array_bytes(np.asarray(self._locators)[numbers]),
            "continuations.probabilities": array_bytes(np.asarray(self._probabilities)[numbers]),
            **ids_section("continuations.contexts", contexts),
            **ids_section("continuations.pool", np.asarray(self._pool)),
        }

    @classmethod
    def from_bundle(cls, bundle: Bundle, vocabulary_size: int) -> DictSpecTable:
        """The table in a bundle. Cost: 1 µs per context.

        Raises: BundleError if a section is missing or holds what no vocabulary of this size has.
        """
        contexts = bundle.ids("continuations.contexts", vocabulary_size)
        pool = bundle.ids("continuations.pool", vocabulary_size)
        parts = list(bundle.parts("continuations.context_lengths", "u1", of=len(contexts)))
        locators = bundle.array("continuations.locators", "<u4", length=len(parts))
        probabilities = bundle.array("continuations.probabilities", "u1", length=len(parts))
        bundle.check_ids((locators >> 3) + (locators & 7), len(pool), "continuations.locators")
        ids, packers = contexts.tolist(), _packers(pool.itemsize)
        keys = []
        before: list[int] = []
        for begin, end in parts:
            context = ids[begin:end]
            if not before < context or len(context) > MAX_CONTEXT:
                raise bundle.wrong(f"the contexts are not sorted, or one has {len(context)} ids")
            keys.append(packers[len(context)](*reversed(context)))
            before = context
        trie = marisa_trie.BinaryTrie(keys)
        order = np.empty(len(keys), dtype=np.intp)
        order[[trie[key] for key in keys]] = np.arange(len(keys))
        return cls(
            trie=trie, locators=locators[order], probabilities=probabilities[order], pool=pool
        )

    @classmethod
    def from_entries(
        cls, entries: Mapping[Ids, tuple[Ids, float]], vocabulary_size: int
    ) -> DictSpecTable:
        """Pack `context -> (continuation, probability)`.

        Contexts and continuations have 1 to 8 ids below `vocabulary_size`. Probabilities are
        rounded to 1/255. Equal entries give equal bytes, in any order. Cost: 7 µs per entry.
        """
        width = 2 if vocabulary_size <= 1 << 16 else 4
        packers = _packers(width)
        packed = {packers[len(context)](*context[::-1]): context for context in sorted(entries)}
        trie = marisa_trie.BinaryTrie(packed)
        starts, pool = _share_pool({ids for ids, _ in entries.values()})
        locators = np.zeros(len(entries), dtype=np.uint32)
        probabilities = np.zeros(len(entries), dtype=np.uint8)
        for key, context in packed.items():
            ids, probability = entries[context]
            index = trie[key]
            locators[index] = starts[ids] << 3 | len(ids) - 1
            probabilities[index] = round(probability * 255)
        return cls(
            trie=trie,
            locators=locators,
            probabilities=probabilities,
            pool=np.array(pool, dtype=f"u{width}"),
        )

    def _read(self, key: bytes) -> Continuation:
        index = self._trie[key]
        start, last = divmod(self._locators[index], 8)
        ids = cast("Ids", tuple(self._pool[start : start + last + 1]))
        return Continuation(ids, self._probabilities[index] / 255, len(key) // self._width)


def _packers(width: int) -> list[_Packer]:
    """For n = 0 to 8, the function that packs n ids of `width` bytes each, little-endian."""
    return [struct.Struct(f"<{n}{_TYPE_CODES[width]}").pack for n in range(MAX_CONTEXT + 1)]


def _share_pool(values: Collection[Ids]) -> tuple[dict[Ids, int], list[TargetId]]:
    """Lay out values in one list of ids, so that a suffix of another value takes no room.

    Returns where each value begins, and the list. In the order of their reversed ids, a value comes
    right before those that end with it. So, going backwards, the value laid out last has it as its
    suffix if any value does.
    Example: (7, 8, 9), (8, 9) and (9,) share three ids. This is the usual case, because the rest of
    an n-gram is stored for every prefix of the n-gram.
    """
    starts: dict[Ids, int] = {}
    pool: list[TargetId] = []
    last: Ids = ()
    for value in sorted(values, key=lambda ids: ids[::-1], reverse=True):
        if last[-len(value) :] != value:
            pool += value
            last = value
        starts[value] = len(pool) - len(value)
    return starts, pool
