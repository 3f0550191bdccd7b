"""Which tokens of a growing piece can no longer change.

Example (Bielik): the piece ` poniedziałek` is encoded as `▁pon`, `ied`, `ział`, `ek`, of which the
first three are stable. If the piece grows, it may go on with a longer token that begins with `ek`,
such as `eks`, after `▁pon`, `ied`, `ział`; or with one that begins with `k`, such as `ke`, after
`▁pon`, `ied`, `ział`, `e`. No longer token begins with any other end of the piece. What these
encodings have in common are the first three tokens. The proof is in `docs/alignment.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokalign.bpe.encoder import BytePairEncoding
from tokalign.bpe.ids import Id

_TRIED = 16
"""How many tokens are tried before one is assumed to follow. That makes fewer ids stable, and none
wrongly."""


@lru_cache(maxsize=1 << 16)
def count_stable(bpe: BytePairEncoding[Id], piece: bytes) -> int:
    """How many leading ids of `piece` stay what they are, whatever the piece grows to.

    In the encoding of a longer piece some token begins at a byte s, at or before the end of
    `piece`, and ends after it. The tokens before it are the encoding of `piece[:s]`, because the
    beginning of a canonical encoding is canonical. So the ids that the encodings of `piece[:s]`
    have in common, for all s where a token beginning with `piece[s:]` may stand, are stable.
    Cost: 50 µs, 400 µs for one piece in a hundred; remembered.
    """
    ids = bpe.encode_piece(piece)
    start, end = bpe.order.extending(piece)
    if start < end:
        return 0
    stable = _count_common(ids, _merged(bpe, piece))
    for size in range(1, len(piece)):
        if not stable:
            break
        start, end = bpe.order.extending(piece[size:])
        if start < end:
            before = _merged(bpe, piece[:size])
            common = _count_common(ids, before)
            if common < stable and _some_follows(bpe, before[-1], range(start, end)):
                stable = common
    return stable


def _merged(bpe: BytePairEncoding[Id], data: bytes) -> Sequence[Id]:
    """The encoding of the beginning of a piece: never a token that only stands as a whole piece."""
    ids = bpe.encode_piece(data)
    return ids if len(ids) > 1 or bpe.validity.reachable(ids[0]) else bpe.merge(data).ids


def _some_follows(bpe: BytePairEncoding[Id], last: Id, indices: range) -> bool:
    """Whether one of these tokens (indices into `bpe.order`) may follow the token `last`."""
    tokens, validity = bpe.order.ids, bpe.validity
    return len(indices) > _TRIED or any(
        validity.may_follow(last, tokens[at]) and validity.reachable(tokens[at]) for at in indices
    )


def _count_common(a: Sequence[Id], b: Sequence[Id]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
