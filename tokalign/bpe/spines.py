"""What stands at the edge of a token while the merges make it, and when a merge crosses there.

Undo the merges of a token: at its right edge stood, over time, ever larger tokens, its *right
spine*, and at its left edge its left spine. Two tokens that meet at a boundary evolve apart until
a merge crosses it. Time is told in *moments*: the highest rank merged so far within the bytes
concerned. Ranks alone will not do: a merge of a low rank may have to wait until one of a high rank
makes its halves, and 9,000 to 50,000 merges of the real tokenizers do.
"""

from __future__ import annotations

from typing import NamedTuple

NEVER = 1 << 60
"""A rank later than that of any merge."""


class Stay(NamedTuple):
    """A token on a spine: how long it stands at the edge of the token it becomes a part of.

    made, used: the moments at which it comes and goes; hold: the highest rank that is merged in
    between within that token, the merge that uses it up included.
    """

    id: int
    made: int
    used: int
    hold: int


Spine = tuple[Stay, ...]
"""The tokens that stand, over time, at one edge of a token: itself first, its symbol last."""


def crosses(rank: int, a: Stay, b: Stay) -> bool:
    """Whether the merge of `a` and `b`, of this rank, happens while both stand at the boundary.

    It goes first as soon as both are there, unless a merge inside either token that is due before
    one of them is gone has a lower rank, or an equal one and stands further left.
    """
    if a.made > b.made:  # `b` was there when `a` came, unless used up earlier
        return b.used >= a.made and rank < a.hold and rank <= b.used
    return a.used > b.made and rank <= b.hold and rank < a.used
