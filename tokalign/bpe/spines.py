"""The tokens at the edge of a token while it is merged, and when a merge crosses a boundary.

While the merges make a token, ever larger tokens stand at its right edge: its *right spine*. Those
at its left edge are its *left spine*. Two tokens that meet at a boundary are made independently
until a merge joins a token of the left one's right spine with a token of the right one's left
spine: that merge *crosses* the boundary.

Ranks alone do not tell in which order merges happen. A merge of a low rank may have to wait until
one of a high rank makes its halves; 9,000 to 50,000 merges of the real tokenizers do. So time is
measured by the *max rank*: the highest rank merged so far within the bytes concerned.

Example (Bielik): may `sz` follow `▁War`, as in `▁Warszawa`?

    right spine of ▁War:    r until max rank 34,     then ar until 6770,  then ▁War
    left spine of sz:       s until max rank 10875,  then sz

The merge of `ar` and `s` has rank 1829. At that time both stand at the boundary, so it crosses,
and `sz` may not follow `▁War`: the canonical encoding is `▁Wars`, `z`, `awa`.
Next: `validity.py`, which builds the spines.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias

from tokalign.bpe.ids import Id

NEVER = 1 << 60
"""Later than any merge."""


class EdgeToken(NamedTuple, Generic[Id]):
    """A token that stands at the edge of a larger one for a part of its making.

    entered, left: the max ranks at which it comes to stand there, and at which it is merged away;
        -1 for a symbol, which is there from the start, and NEVER for the finished token.
    blocking_rank: the highest rank merged within the larger token in between, including the merge
        that takes this token away. A merge across the edge comes too late if its rank is higher.
    """

    id: Id
    entered: int
    left: int
    blocking_rank: int


Spine: TypeAlias = tuple[EdgeToken[Id], ...]
"""The tokens at one edge of a token, the latest first: itself, and at the end its symbol."""


def crosses(rank: int, a: EdgeToken[Id], b: EdgeToken[Id]) -> bool:
    """Whether the merge of `a` and `b`, of this rank, happens while both stand at the boundary.

    a: of the right spine of the token before the boundary; b: of the left spine of the one after.
    It happens once both stand there, unless merges of lower ranks take one of them away first.
    Where ranks are equal the leftmost merge goes first.
    """
    if a.entered > b.entered:  # `b` was there when `a` came, unless it was merged away earlier
        return b.left >= a.entered and rank < a.blocking_rank and rank <= b.left
    return a.left > b.entered and rank <= b.blocking_rank and rank < a.left
