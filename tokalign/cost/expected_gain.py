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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


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


def best_length(probabilities: Sequence[float], costs: Costs, *, spent: float = 0.0) -> Plan:
    """How many ids of a chain, 0 included, give the highest expected rate; ties go to the fewest.

    probabilities: of each id, that it is right if those before it are.
    spent: time that drafting has taken in this round.
    Cost: under 1 µs per id.
    """
    best = Plan(0, 1.0 / (costs.verify(1) + spent))
    expected = 1.0
    for length, reached in enumerate(accumulate(probabilities, mul), start=1):
        expected += reached
        rate = expected / (costs.verify(length + 1) + costs.host + spent)
        if rate > best.rate:
            best = Plan(length, rate, expected)
    return best


def reach(probabilities: Sequence[float], parents: Sequence[int]) -> list[float]:
    """For each id of a tree, the probability that it and all its ancestors are right.

    probabilities: of each id, that it is right if its ancestors are. parents: as in `TokenTree`.
    """
    reached: list[float] = []
    for probability, parent in zip(probabilities, parents, strict=True):
        reached.append(probability * (reached[parent] if parent >= 0 else 1.0))
    return reached


def expected_accepted(probabilities: Sequence[float], parents: Sequence[int]) -> float:
    """How many ids of a tree are accepted on average; arguments as for `reach`."""
    return sum(reach(probabilities, parents))


def most_probable_ids(
    probabilities: Sequence[float], parents: Sequence[int], count: int
) -> list[int]:
    """The `count` ids of a tree, by index, that are most probably reached.

    None is likelier than its parent, so they are a tree; ties go to the first. Arguments as for
    `reach`.
    """
    reached = reach(probabilities, parents)
    return sorted(sorted(range(len(reached)), key=lambda i: (-reached[i], i))[:count])


def best_size(
    probabilities: Sequence[float], parents: Sequence[int], costs: Costs, *, spent: float = 0.0
) -> Plan:
    """How many ids of a tree, the most probably reached first, give the highest expected rate.

    An accepted id beside the first chain costs nothing in the next round. Ties go to the fewest.
    Arguments as for `reach`. spent: as for `best_length`, which this is for a chain.
    Source: OPT-Tree (Wang et al., 2024).
    """
    best = Plan(0, 1.0 / (costs.verify(1) + spent))
    expected = 1.0
    for length, reached in enumerate(sorted(reach(probabilities, parents), reverse=True), start=1):
        expected += reached
        rate = expected / (costs.verify(length + 1) + costs.host + spent)
        if rate > best.rate:
            best = Plan(length, rate, expected)
    return best


def best_ids(
    probabilities: Sequence[float], parents: Sequence[int], costs: Costs, *, spent: float = 0.0
) -> list[int]:
    """Which ids of a tree, by index, give the highest expected rate; maybe none.

    Arguments as for `best_size`.
    """
    best = best_size(probabilities, parents, costs, spent=spent)
    return most_probable_ids(probabilities, parents, best.length)
