"""What tests hold against encoding: what is canonical, by the pairs, and which cuts are final."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tokalign.tokenizer.bpe.encoder import BytePairEncoding
from tokalign.tokenizer.bpe.pretokenizer import Splitter


def is_canonical_piece(bpe: BytePairEncoding[Any], ids: Sequence[int]) -> bool:
    """Whether `ids` is the canonical encoding of its own bytes, taken as one piece.

    Every pair has to be valid, bytes that spell a character must not spell one that is a symbol,
    and with `ignore_merges` the whole must not be a token.
    """
    validity, whole = bpe.validity, bpe.whole
    if not all(validity.reachable(i) for i in ids):
        return len(ids) == 1 and whole.get(bpe.tokens[ids[0]]) == ids[0]
    data = b"".join([bpe.tokens[i] for i in ids])
    if len(ids) > 1 and data in whole:
        return False
    if bpe.fallback and not _spells_no_symbol(bpe, ids):
        return False
    return all(validity.may_follow(left, right) for left, right in pairwise(ids))


def _spells_no_symbol(bpe: BytePairEncoding[Any], ids: Sequence[int]) -> bool:
    """Whether each run of byte-fallback ids spells only characters that are no symbols."""
    start = 0
    while start < len(ids):
        if ids[start] not in bpe.fallback:
            start += 1
            continue
        end = start
        while end < len(ids) and ids[end] in bpe.fallback:
            end += 1
        run = list(ids[start:end])
        if bpe.base_symbols(b"".join([bpe.tokens[i] for i in run])) != run:
            return False
        start = end
    return True


def assert_settled_pieces_stay(splitter: Splitter, data: bytes) -> None:
    """For every beginning of `data`: its settled pieces are pieces of the whole, which may be cut
    from there on.
    """
    whole = splitter.split(data)
    assert b"".join(whole) == data
    for cut in range(1, len(data)):
        pieces = splitter.split(data[:cut])
        settled = splitter.count_settled(data[:cut], pieces)
        assert pieces[:settled] == whole[:settled]
        assert splitter.split(b"".join(whole[settled:])) == whole[settled:]
