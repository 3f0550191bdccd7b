"""Sources that are looked up: dictionaries, and the target's own earlier top-k logits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from typing import Any, NewType, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.draft.mixing import LEAST_REACHED
from tokalign.runtime.rounds import Context, Drafter, Proposal
from tokalign.tables.dictionary import CHAT, CODE, MAX_CONTEXT, Dictionaries, Dictionary, Ids
from tokalign.tables.logit_rows import (
    ID_BITS,
    LOG_ODDS,
    LONGEST_KEY,
    MOST_ROWS,
    LogitRows,
    codes_of,
    keys_of,
)
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId, token_bytes

_LESS_SURE = 0.7
"""Subtracted from the log-odds of alternatives. The weights of the mixture (`weights.py`) hold for
the best id of a context; they would make too much of the others. Fitted as those weights were."""


class DictionaryDrafter(Drafter):
    """Proposes what usually follows the longest suffix of the context that a table knows.

    max_tokens: the longest proposal.
    """

    def __init__(self, table: Dictionary | Dictionaries, *, max_tokens: int = 8) -> None:
        self._table, self._max_tokens = table, max_tokens

    def propose(self, context: Context, limit: int) -> Proposal:
        most = min(limit, self._max_tokens)
        return Proposal(tree=self._table.follow(context.ids[-MAX_CONTEXT:], most))


_PROSE, _CODE = 0, 1  # blocks of text
_FENCE = re.compile(rb"(?: {0,3}(?:[-*+>]|\d+[.)]))? *(```+|~~~+) *([\w+#.-]*)")
_NO_CODE = frozenset((b"markdown", b"md", b"text", b"txt", b"plaintext"))
_MOST_READ, _MOST_LEARNED = 4096, 64  # ids of the prompt: for fences, and to learn from
_LONGEST_LINE = 100  # bytes in which a fence is looked for

_USUAL, _UNUSUAL = 0.2, 0.04  # how often a first guess is right, before any was seen
_RATE = 1 / 32
_LEAST_RIGHT = 0.03


class BlockTrust:
    """Says which dictionary is asked in the block that a text is in: prose, or code in a fence.

    It is the one whose first guess was lately right most often, counted in prose and in code apart.
    So a fence changes who is asked at once, and another language within two dozen ids. A second
    one besides would hold its silence against the best (`lab/results/packs.md`); but `chat`, which
    has weights of its own, is asked beside it.
    tokens: the bytes of the target's ids; without them all of a text is one block.
    Cost: one look-up for each emitted id and dictionary, about 8 µs.
    """

    def __init__(self, tables: Mapping[str, Dictionary], tokens: Sequence[bytes]) -> None:
        self._tables, self._tokens = list(tables.values()), tokens
        labels = [name.rpartition(":")[2] for name in tables]
        self._rivals = [place for place, label in enumerate(labels) if label != CHAT]
        self._right = [
            [
                _USUAL if label == CHAT or (label == CODE) == bool(block) else _UNUSUAL
                for label in labels
            ]
            for block in (_PROSE, _CODE)
        ]
        self._seen, self._block = 0, _PROSE
        self._fence, self._line = b"", b""

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Read on in the text, which only grows."""
        size = len(ids)
        for at in range(self._seen or max(0, size - _MOST_READ), size):
            if self._seen or at >= size - _MOST_LEARNED:
                self._learn(ids[max(0, at - MAX_CONTEXT) : at], ids[at])
            if self._tokens:
                self._read(token_bytes(self._tokens, ids[at]))
        self._seen = size

    def asks(self, place: int) -> bool:
        """Whether the dictionary at this place is asked here."""
        right, least = self._right[self._block], _LEAST_RIGHT
        if place in self._rivals:
            least = max(least, *[right[rival] for rival in self._rivals])
        return right[place] >= least

    def _learn(self, context: Sequence[TargetId], token: TargetId) -> None:
        right = self._right[self._block]
        for place, table in enumerate(self._tables):
            expected = table.expected(context)
            guessed = bool(expected) and expected[0][0] == token
            right[place] += _RATE * (guessed - right[place])

    def _read(self, data: bytes) -> None:
        """Look for fences at the beginnings of lines. A special token ends every block."""
        *ended, rest = data.split(b"\n") if data else (b"\n", b"")
        if not data:
            self._fence, self._block = b"", _PROSE
        for end in ended:
            self._end_line(self._line + end)
            self._line = b""
        if len(self._line) < _LONGEST_LINE:
            self._line += rest

    def _end_line(self, line: bytes) -> None:
        if not (fence := _FENCE.match(line)):
            return
        if not self._fence:
            self._fence = fence[1]
            self._block = _PROSE if fence[2].lower() in _NO_CODE else _CODE
        elif fence[1].startswith(self._fence) and not fence[2]:
            self._fence, self._block = b"", _PROSE


class DictionarySource:
    """A dictionary as a source of a tree; how far it fits a text is learned as trust in its name.
    blocks: say whether it is asked, by its place among them. Cost: about 5 µs a node."""

    def __init__(
        self, name: str, table: Dictionary, blocks: BlockTrust | None = None, place: int = 0
    ) -> None:
        self.name, self._table = name, table
        self._blocks, self._place = blocks, place

    def follow(self, ids: Sequence[TargetId]) -> Ids | None:
        if self._blocks is not None:
            self._blocks.follow(ids)
            if not self._blocks.asks(self._place):
                return None
        return tuple(ids[-MAX_CONTEXT:])

    # A method, so that every dictionary has states of its own.
    def advance(self, state: Ids, token: TargetId) -> Ids:
        return (*state[1 - MAX_CONTEXT :], token)

    def expect(self, state: Ids) -> Sequence[tuple[TargetId, float]]:
        expected = self._table.expected(state)
        if len(expected) < 2:
            return expected
        return [expected[0], *[(token, odds - _LESS_SURE) for token, odds in expected[1:]]]


def dictionary_sources(tables: Dictionaries) -> list[DictionarySource]:
    """Dictionaries as sources, so that trust in each is learned by its name."""
    several = len(tables.by_source) > 1
    blocks = BlockTrust(tables.by_source, tables.tokens) if several else None
    named = enumerate(tables.by_source.items())
    return [DictionarySource(name, table, blocks, place) for place, (name, table) in named]


# -- the target's top-k logits ------------------------------------------------------------------

LOGITS = "logits"
"""What the sources of a logit store are called, with the length of their keys."""

_odds_of = LOG_ODDS.__getitem__

_RARE = bytes(
    code for code, odds in enumerate(LOG_ODDS) if odds < log(LEAST_REACHED / (1.0 - LEAST_REACHED))
)
"""Codes of ids that are not looked at."""

KEPT = 32
"""Ids kept of each row: where the target samples, its noise often lifts one of the later ones. At
15 drafted ids, 8, 16 and 32 of them gave 2.44, 2.51 and 2.53 tokens per pass (`trees.md`)."""

SLOTS = 2 * MOST_ROWS
"""Slots of a store: 22 MB (168 bytes each: a key, the ids and their log-odds), if all are used."""

Tail = NewType("Tail", int)
"""The last three ids of a text in one number, `ID_BITS` each, the last one lowest."""

_TAIL_MASK = (1 << LONGEST_KEY * ID_BITS) - 1
_WORD = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
"""Spreads the keys over the slots: Knuth's multiplicative hashing by 2^64 over the golden ratio."""


def tail_of(ids: Iterable[TargetId]) -> Tail:
    """The tail of a text that ends in `ids`."""
    tail = Tail(0)
    for token in ids:
        tail = extended(tail, token)
    return tail


def extended(tail: Tail, token: TargetId) -> Tail:
    """The tail of a text with one more id."""
    return (tail << ID_BITS | token) & _TAIL_MASK  # type: ignore[return-value]  # costs a call


class LogitStore:
    """The target's own top-k logits for every verified row, looked up by the last ids.

    A pass computes the target's distribution after every row of a proposal, and verification uses
    one id of each. The store keeps the top `KEPT` ids of every row, whether the row was accepted or
    not, under the last one, two and three ids before it. A later round that meets these ids again
    finds what the target expected there.

    Probabilities are those of the raw logits: at temperature 1, before processors and filters. They
    do not depend on the options of a request, so requests with different options may share a store;
    what they are worth under a request's own options is learned (`mixing.py`).

    The store is a hash table with a fixed number of slots, each of which keeps the latest row that
    fell to it. So an update takes constant time, and memory is the same for every vocabulary.
    Source: the adjacency matrix of Token Recycling (Luo et al., 2024) and the confidence matrix of
    UniSpec, which are keyed by the last id alone.

    It serves one conversation or one session, of one target. Several threads may use it: a slot
    that one of them reads while another writes can give a wrong guess, never a wrong output.
    known: rows to begin with. slots: a power of two. learned: how many passes it has learned from.
    """

    width = KEPT

    def __init__(self, known: LogitRows | None = None, *, slots: int = SLOTS) -> None:
        self._shift = 64 - (slots.bit_length() - 1)
        self._keys = np.zeros(slots, dtype=np.uint64)
        self._ids = np.zeros((slots, KEPT), dtype=np.uint32)
        self._codes = np.zeros((slots, KEPT), dtype=np.uint8)
        # Indexing a memoryview gives plain Python numbers, several times faster than an array.
        self._key_of = self._keys.data
        self._flat_ids = cast("Sequence[TargetId]", self._ids.reshape(-1).data)
        self._flat_codes = self._codes.reshape(-1).data
        self.learned = 0
        if known is not None:
            self.begin_with(known)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._ids.nbytes + self._codes.nbytes

    def __len__(self) -> int:
        return int(np.count_nonzero(self._keys))

    @property
    def rows(self) -> LogitRows:
        used = np.flatnonzero(self._keys)
        return LogitRows(self._keys[used], self._ids[used], self._codes[used])

    def begin_with(self, known: LogitRows) -> None:
        """Take over rows where a slot is free; of those that fall to one slot, the last one."""
        free = self._keys[self._slots(known.keys)] == 0
        self._write(known.keys[free], known.ids[free], known.codes[free])

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree[TargetId],
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        self.learned += 1
        likely, logprobs = ranked(likely, logprobs)
        tails = [tail_of(ids[-LONGEST_KEY:])]
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            tails.append(extended(tails[parent + 1], token))
        self._write(keys_of(np.array(tails, dtype=np.uint64)), likely, codes_of(logprobs))

    def _write(self, keys: NDArray[np.uint64], ids: NDArray[Any], codes: NDArray[np.uint8]) -> None:
        """keys: u64[..., rows]; each of them gets the row i[rows, kept], u8[rows, kept]."""
        slots = self._slots(keys)
        kept = min(KEPT, ids.shape[1])
        self._codes[slots, kept:] = 0  # of rows of a table, which have fewer ids: nothing is rarer
        self._ids[slots, :kept] = ids[:, :kept]
        self._codes[slots, :kept] = codes[:, :kept]
        self._keys[slots] = keys

    def _slots(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return (keys * np.uint64(_MULTIPLIER)) >> np.uint64(self._shift)

    def look_up(self, length: int) -> Callable[[Tail], Sequence[tuple[TargetId, float]] | None]:
        """A function that finds what the target expected after the last `length` ids of a text: ids
        with log-odds, the most probable first, without those that no tree looks at. Cost: 1 µs;
        reading attributes would double it."""
        keys, ids, codes, shift = self._key_of, self._flat_ids, self._flat_codes, self._shift
        mask = (1 << length * ID_BITS) - 1

        def expected(tail: Tail) -> Sequence[tuple[TargetId, float]] | None:
            key = (tail & mask) << 2 | length
            slot = (key * _MULTIPLIER & _WORD) >> shift
            if keys[slot] != key:
                return None
            begin = slot * KEPT
            likely = bytes(codes[begin : begin + KEPT]).translate(None, _RARE)
            return [*zip(ids[begin : begin + len(likely)], map(_odds_of, likely), strict=True)]

        return expected


def ranked(likely: NDArray[Any], logprobs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same rows i[rows, width] and f[rows, width], the most probable id first; ties stay."""
    rows = np.arange(len(likely))[:, None]
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    return likely[rows, order], logprobs[rows, order]


class LogitSource:
    """Expects the target's top-k logits from the last time that these `length` ids were read."""

    def __init__(self, store: LogitStore, length: int) -> None:
        self.name, self.expect = f"{LOGITS}:{length}", store.look_up(length)

    def follow(self, ids: Sequence[TargetId]) -> Tail:
        return tail_of(ids[-LONGEST_KEY:])

    advance = staticmethod(extended)


def logit_sources(store: LogitStore) -> list[LogitSource]:
    """The sources of a store, the longest keys first."""
    return [LogitSource(store, length) for length in range(LONGEST_KEY, 0, -1)]
