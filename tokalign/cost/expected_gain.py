"""What a proposal is worth: the tokens expected of a round over the time they cost.

A round that proposes n ids emits 1 + sum of P_i tokens on average, where P_i is the probability
that the i-th id and all ids before it are right. It costs C(n + 1) for the target's rows, besides
what drafting cost. Decoding maximizes the rate, tokens over time; n = 0 is plain decoding. C is a
measured staircase, so every n is looked at: the rate may fall and rise again.

Example: with P = (0.8, 0.64) and C = (1, 1.5, 1.5), one id has a rate of 1.8 / 1.5 = 1.2, two ids
of 2.44 / 1.5 = 1.63, and plain decoding of 1.
Source: the expected gain of speculative decoding (Leviathan et al., 2023, section 3.4), with a cost
per row instead of a constant one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times in one unit: seconds, or passes of the target over one row.

    rows: C(1), C(2), ... of the target's pass; after its end the last step goes on.
    draft_pass: of the draft model. host: the rest of a round that has a proposal.
    tree_pass: of the draft model where it grows a tree; None: the same as `draft_pass`.
    """

    rows: tuple[float, ...]
    draft_pass: float = 0.0
    host: float = 0.0
    tree_pass: float | None = None

    def verify(self, rows: int) -> float:
        """Time of the target's pass over `rows` (1 or more) positions."""
        known = self.rows
        if rows <= len(known):
            return known[rows - 1]
        slope = max(0.0, known[-1] - known[-2]) if len(known) > 1 else 0.0
        return known[-1] + slope * (rows - len(known))

    def drafting(self, passes: int, *, tree: bool) -> float:
        """Time of a draft of so many passes of the draft model. tree: whether it grew a tree."""
        return passes * (self.tree_pass if tree and self.tree_pass is not None else self.draft_pass)

    def expected_verify(self, rows: float) -> float:
        """Expected time where `rows` (1 or more) is an expected number of positions."""
        whole = int(rows)
        below = self.verify(whole)
        return below + (rows - whole) * (self.verify(whole + 1) - below)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft and the rate that this is expected to give.

    length: ids to propose, or passes of a draft model. rate: tokens per unit of time.
    tokens: expected of the round, the target's own included.
    """

    length: int
    rate: float
    tokens: float = 1.0
