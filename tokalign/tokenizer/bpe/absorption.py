"""What a token absorbs: bytes that follow it in no canonical encoding.

*Which piece* the bytes belong to is decided by the pre-tokenizer, which needs the text before the
boundary. *Within a piece* the merges decide: bytes are absorbed if no token that begins with them
may follow, and no shorter token may follow that could itself be followed by the rest of them.

Example (Bielik), after the token ` kom`:

    b"eta"  is not absorbed: " kometa" is encoded as ` kom|eta`.
    b"et"   is not absorbed, although " komet" is ` k|omet`: with b"a" after it, ` kom` stays.
    b"etr"  is absorbed: none of the tokens `etr`, `etric` and `etry` may follow ` kom`, and no
            shorter one after which the rest could stand. No text that begins with " kometr" keeps
            the boundary.

The merges are asked about one token at a time. That takes long where many tokens begin with the
same bytes; there a table has the answer (`MergeSites` in `tables/alignment.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Generic

from tokalign.tokenizer.bpe import Id
from tokalign.tokenizer.bpe.encoder import BytePairEncoding
from tokalign.tokenizer.bpe.expressions import RegexSplitter
from tokalign.tokenizer.bpe.pretokenizer import incomplete_tail

MIN_FANOUT = 16
"""Where more tokens than this begin with the same bytes, a table answers instead of the merges."""

LONGEST = 128
"""Bytes that are asked about. Of each token that they may begin with the rest is asked, one call
within the other, so that no more than a few hundred fit."""

_CONTINUATIONS = (
    *(b"", b"t", b"e", b"l", b"A", b"1", b"11", b"111", b".", b"'", b" ", b"\n", b" t"),
)
"""One next text of each kind that can decide where a piece ends. GPT-4o's `'t`, `'re` and `'ll`
belong to the word before, so that three small letters differ. Some count digits from the last."""

FALLBACK = -1
"""Stands for "some byte-fallback token" in a list of token indices."""


class Absorption(Generic[Id]):
    """Decides what the tokens of a tokenizer absorb. known: whether one absorbs bytes with which
    more than MIN_FANOUT tokens begin, by the table of merge sites; else the merges say it."""

    def __init__(
        self, bpe: BytePairEncoding[Id], known: Callable[[Id, bytes], bool] | None = None
    ) -> None:
        self._bpe, self._known = bpe, known
        self._validity = bpe.validity
        self._in_pieces = not bpe.splitter.merges_decide
        self._regex = bpe.splitter if isinstance(bpe.splitter, RegexSplitter) else None
        self._by_words = bpe.splitter.cuts_at_spaces
        self.within_piece = lru_cache(maxsize=1 << 16)(self._within_piece)

    def absorbs(self, left: bytes, last: Id, data: bytes) -> bool:
        """Whether no canonical encoding continues with `data`, whatever comes after `data`. It may
        be False wrongly if only what comes after `LONGEST` bytes decides.

        left: the text before the boundary, from the beginning of its piece or earlier, as far as
            it is not settled; it ends with the token `last`.
        Cost: 2 µs for a pair seen before, 30 µs with a pre-tokenizer; up to 100 µs for a new one.
        """
        if not left:
            return False  # the piece before the boundary is settled
        data = data[:LONGEST]
        if not self._in_pieces:
            return self._absorbs_word(left, last, data)
        known = data[: max(0, len(data) - incomplete_tail(left + data))]
        if incomplete_tail(left) and not known:
            return self.within_piece(last, data)  # more of the same character
        text, boundary = left + known, len(left)
        word = None if self._regex is None else self._regex.word_around(text, boundary)
        if word is None:
            completed = self._bpe.splitter.completion(known)
            nexts = (*_CONTINUATIONS, completed) if completed else _CONTINUATIONS
            spans = {self._piece_around(text + more, boundary) for more in nexts}
        else:  # the same, sooner: a word at the end of the text may go on
            spans = {word, (word[0], len(text) + 1)} if word[1] == len(text) else {word}
        inside = min(end for _, end in spans) - boundary
        if inside <= 0:
            return False
        if len(spans) > 1:
            return self.within_piece(last, data[:inside])
        start, end = spans.pop()
        return not self._ends_a_token(text[start:end], boundary - start)

    def _absorbs_word(self, left: bytes, last: Id, data: bytes) -> bool:
        """Without a pre-tokenizer. If no token crosses words, only the first word counts."""
        if self._by_words:
            if data[:1] == b" " and left[-1:] != b" ":
                return False
            end = data.find(b" ", len(data) - len(data.lstrip(b" ")))
            data = data[:end] if end > 0 else data
        return self.within_piece(last, data)

    def _piece_around(self, text: bytes, boundary: int) -> tuple[int, int]:
        """Begin and end of the piece that holds the byte before `boundary`."""
        start = end = 0
        for piece in self._bpe.splitter.split(text):
            start, end = end, end + len(piece)
            if end >= boundary:
                break
        return start, end

    def _ends_a_token(self, piece: bytes, at: int) -> bool:
        """Whether a token of the piece's encoding ends at this byte."""
        for token in self._bpe.encode_piece(piece):
            at -= len(self._bpe.tokens[token])
            if at <= 0:
                break
        return at == 0

    def _within_piece(self, last: Id, data: bytes) -> bool:
        """Whether no canonical piece has the token `last` followed by `data`; cached."""
        bpe = self._bpe
        if not data or last in bpe.fallback or self._falls_back(data):
            return False
        if not self._validity.reachable(last):
            return True  # the token occurs only as a whole piece
        if self._known is not None and self._known(last, data):
            return True
        start, end = bpe.order.starting_with(data)
        if end - start > MIN_FANOUT and self._known is not None:
            return False
        if self._some_follows(last, range(start, end)):
            return False
        splits = self._splits(data)
        return not any(self._some_follows(last, [at]) and self._goes_on(at, r) for at, r in splits)

    def _some_follows(self, last: Id, indices: Sequence[int]) -> bool:
        """Whether one of these tokens (indices into `bpe.order`) may follow within a piece."""
        validity, tokens = self._validity, self._bpe.order.ids
        return any(
            validity.may_follow(last, tokens[at]) and validity.reachable(tokens[at])
            for at in indices
        )

    def _splits(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The shorter tokens that `data` begins with, as indices into `bpe.order`, and the rest."""
        for size in range(1, len(data)):
            at = self._bpe.order.find(data[:size])
            if at is not None:
                yield at, data[size:]

    def _goes_on(self, at: int, rest: bytes) -> bool:
        """Whether the token at this index of `bpe.order` may be followed by `rest`."""
        token = self._bpe.order.ids[at]
        return self._validity.reachable(token) and not self.within_piece(token, rest)

    def beginnings(self, data: bytes) -> tuple[int, ...]:
        """The tokens shorter than `data` that it can begin with and its rest may follow, as indices
        into `bpe.order`; FALLBACK for a character that is spelled in bytes."""
        if self._falls_back(data):
            return (FALLBACK,)
        return tuple(at for at, rest in self._splits(data) if self._goes_on(at, rest))

    def _falls_back(self, data: bytes) -> bool:
        """Whether `data` begins with a character that is spelled in bytes; no token absorbs it."""
        if not self._bpe.fallback:
            return False
        needed = _character_length(data[0])
        if len(data) >= needed:
            return data[:needed] not in self._bpe.symbols
        # Only the beginning of a character is known. It may become one that is no symbol, unless it
        # has two bytes and all 64 characters with this first byte are symbols.
        return needed > 2 or self._symbols_by_lead[data[0]] < 64

    @cached_property
    def _symbols_by_lead(self) -> Counter[int]:
        return Counter(symbol[0] for symbol in self._bpe.symbols if len(symbol) == 2)


def _character_length(lead: int) -> int:
    """Bytes of the UTF-8 character that begins with `lead`; 1 for a stray byte."""
    return 1 if lead < 0xC2 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@lru_cache(maxsize=8)
def shared_absorption(
    bpe: BytePairEncoding[Any], known: Callable[[Any, bytes], bool]
) -> Absorption[Any]:
    """One object per tokenizer and table, so that what it has derived serves later requests too."""
    return Absorption(bpe, known)
