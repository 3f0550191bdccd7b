"""Byte-pair encoding of many short pieces at once; the result is that of `BytePairEncoding`.

Each round makes one merge in every piece that has one left: the one of the lowest rank, the
leftmost of equal ones. A word of nine characters takes five rounds, whatever the number of words.
It costs 2 us per word, where the `tokenizers` library takes 9, most of it outside the merging.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokalign.bpe.pretokenizer import as_bytes
from tokalign.build.counting.hash_index import MULTIPLIER, HashIndex
from tokalign.build.counting.sequence_pool import Ints, Pool, positions
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_NONE = np.int64(1 << 60)
_UNKNOWN = -1


class BatchBpe:
    """The encoder of one tokenizer that spells every character, over pieces of text."""

    def __init__(self, tokenizer: Tokenizer[TargetId]) -> None:
        self._bpe = tokenizer.bpe
        self._whole = tokenizer.bpe.whole
        pairs, ranks, results = tokenizer.bpe.merges.to_arrays()
        self._pairs = HashIndex()
        self._pairs.add(pairs.astype(np.uint64) * MULTIPLIER)
        self._ranks = np.append(ranks, _NONE)
        self._results = np.zeros(int(ranks.max(initial=-1)) + 1, dtype=np.int64)
        self._results[ranks] = results
        self._numbers = np.full(0x110000, _UNKNOWN, dtype=np.int32)  # of characters, in `_symbols`
        self._symbols = Pool(np.int64)

    def encode(self, pieces: Sequence[str]) -> tuple[Ints, Ints]:
        """The ids of all pieces, one piece after the other, and how many ids each has.

        Cost: 2 us for a piece of ten characters; the time of a piece grows with its length squared.
        """
        whole, split, pieces = self._whole_tokens(pieces)
        tokens, lengths = self._base_symbols(pieces)
        live, done = split, [whole]
        ranks = self._rank(tokens, _last(lengths))
        while len(live):
            starts = np.cumsum(lengths) - lengths
            best = np.minimum.reduceat(ranks, starts)
            if (over := best == _NONE).any():
                finished = np.repeat(over, lengths)
                done.append((live[over], lengths[over], tokens[finished]))
                live, lengths, best = live[~over], lengths[~over], best[~over]
                tokens, ranks = tokens[~finished], ranks[~finished]
            tokens, ranks, lengths = self._merge_once(tokens, ranks, lengths, best)
        return _in_order(done)

    def _whole_tokens(
        self, pieces: Sequence[str]
    ) -> tuple[tuple[Ints, Ints, Ints], Ints, Sequence[str]]:
        """Pieces that are tokens whatever the merges say (`bpe.whole`), and the other pieces.

        The former as `_in_order` takes them, of the latter the indices and the pieces themselves.
        """
        if not self._whole:
            nothing = np.zeros(0, dtype=np.int64)
            return (nothing, nothing, nothing), np.arange(len(pieces)), pieces
        found = [self._whole.get(as_bytes(piece)) for piece in pieces]
        ids = [token for token in found if token is not None]
        which = np.array([i for i, token in enumerate(found) if token is not None], dtype=np.int64)
        split = np.array([i for i, token in enumerate(found) if token is None], dtype=np.int64)
        lone = np.ones(len(ids), dtype=np.int64)
        return (which, lone, np.array(ids, dtype=np.int64)), split, [pieces[i] for i in split]

    def _merge_once(
        self, tokens: Ints, ranks: Ints, lengths: Ints, best: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Make in each piece the leftmost merge of its lowest rank, which is in `best`."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        candidates = np.flatnonzero(ranks == best[owner])
        first = np.ones(len(candidates), dtype=bool)
        first[1:] = owner[candidates[1:]] != owner[candidates[:-1]]
        left = candidates[first]
        tokens[left] = self._results[best]
        stays = np.ones(len(tokens), dtype=bool)
        stays[left + 1] = False
        lengths = lengths - 1
        tokens, ranks = tokens[stays], ranks[stays]
        left -= np.arange(len(left))  # each of the pieces before has lost one token
        last = _last(lengths)
        touched = np.concatenate([left, left[left > 0] - 1])
        ranks[touched] = self._rank_at(tokens, last, touched)
        return tokens, ranks, lengths

    def _rank(self, tokens: Ints, last: NDArray[np.bool]) -> Ints:
        return self._rank_at(tokens, last, np.arange(len(tokens)))

    def _rank_at(self, tokens: Ints, last: NDArray[np.bool], where: Ints) -> Ints:
        """The rank of merging each token with the next one in the same piece."""
        ranks = np.full(len(where), _NONE)
        inner = np.flatnonzero(~last[where])
        pairs = tokens[where[inner]] << 32 | tokens[where[inner] + 1]
        ranks[inner] = self._ranks[self._pairs.find(pairs.astype(np.uint64) * MULTIPLIER)]
        return ranks

    def _base_symbols(self, pieces: Sequence[str]) -> tuple[Ints, Ints]:
        """The symbols that merging starts from, and how many each piece has."""
        characters = np.frombuffer("".join(pieces).encode("utf-32-le"), dtype="<u4")
        if (unknown := np.unique(characters[self._numbers[characters] == _UNKNOWN])).size:
            self._learn(unknown)
        numbers = self._numbers[characters]
        spelled = self._symbols.spans(numbers)[1]
        ends = np.append(0, np.cumsum(spelled))
        cuts = ends[np.cumsum([0, *map(len, pieces)])]
        return self._symbols.concatenate(numbers), np.diff(cuts)

    def _learn(self, characters: NDArray[np.uint32]) -> None:
        symbols = [self._bpe.base_symbols(as_bytes(chr(c))) for c in characters.tolist()]
        self._numbers[characters] = len(self._symbols) + np.arange(len(characters))
        self._symbols.extend(
            np.array([i for ids in symbols for i in ids]), np.array([len(ids) for ids in symbols])
        )


def _last(lengths: Ints) -> NDArray[np.bool]:
    """Whether each element is the last one of its piece."""
    last = np.zeros(int(lengths.sum()), dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    return last


def _in_order(done: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints]:
    """All ids in the order of the pieces, and how many each piece has.

    done: what each round finished: the indices of the pieces, their lengths, their ids.
    """
    which, lengths, ids = (np.concatenate(parts) for parts in zip(*done, strict=True))
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(which)
    return ids[positions(starts[order], lengths[order])], lengths[order]
