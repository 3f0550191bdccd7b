"""What a proposal is worth: expected tokens against the time they cost.

A round that proposes n ids emits 1 + sum of P_i tokens on average, P_i being the probability that
the first i ids are all right, and costs C(n + 1) for the target's rows besides what drafting cost.
The rate of the two is what decoding maximizes; n = 0 is plain decoding. C is a measured staircase,
so the best n is found by looking at every n: the rate may fall and rise again.
Source: the expected-gain criterion of speculative decoding (Leviathan et al., 2023, section 3.4)
with a cost per row instead of a constant one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times, all in one unit: seconds, or passes of the target over one row.

    rows: C(1), C(2), ... of the target's pass; behind its end the last step goes on.
    draft_pass: of the draft model. host: of a round besides the models, with a proposal.
    """

    rows: tuple[float, ...]
    draft_pass: float = 0.0
    host: float = 0.0

    def verify(self, rows: int) -> float:
        """Time of the target's pass over `rows` (1 or more) positions."""
        known = self.rows
        if rows <= len(known):
            return known[rows - 1]
        slope = max(0.0, known[-1] - known[-2]) if len(known) > 1 else 0.0
        return known[-1] + slope * (rows - len(known))


@dataclass(frozen=True, slots=True)
class Plan:
    """How many ids to propose, and how many tokens per unit of time that is expected to give.

    tokens: expected of the round, the target's own included.
    """

    length: int
    rate: float
    tokens: float = 1.0


def best_length(
    probabilities: Sequence[float],
    costs: Costs,
    *,
    spent: float = 0.0,
    per_id: float = 0.0,
    parents: Sequence[int] = (),
) -> Plan:
    """The number of ids, 0 included, with the highest expected rate; the shortest of equals.

    probabilities: conditional, as in `Guess`. spent: time already spent on this round's drafting;
    per_id: time that drafting each further id would take.
    parents: of a tree, as in `Proposal`; it is cut behind its first ids.
    Cost: under 1 µs per id.
    """
    best = Plan(0, 1.0 / (costs.verify(1) + spent))
    expected = 1.0
    for length, reached in enumerate(_reached(probabilities, parents), start=1):
        expected += reached
        time = costs.verify(length + 1) + costs.host + spent + length * per_id
        if expected / time > best.rate:
            best = Plan(length, expected / time, expected)
    return best


def best_ids(
    probabilities: Sequence[float], parents: Sequence[int], costs: Costs, *, spent: float = 0.0
) -> list[int]:
    """Which ids of a tree, by index, give the best expected rate; none may be the best.

    The likeliest to be reached are taken first; nothing is likelier than what it stands behind, so
    that is always a tree. parents, spent: as for `best_length`.
    Source: OPT-Tree (Wang et al., 2024).
    """
    reached = list(_reached(probabilities, parents))
    order = sorted(range(len(reached)), key=lambda i: (-reached[i], i))
    best, expected, rate = 0, 1.0, 1.0 / (costs.verify(1) + spent)
    for length, index in enumerate(order, start=1):
        expected += reached[index]
        time = costs.verify(length + 1) + costs.host + spent
        if expected / time > rate:
            best, rate = length, expected / time
    return sorted(order[:best])


def _reached(probabilities: Sequence[float], parents: Sequence[int]) -> Iterable[float]:
    """For each id the probability that it and everything it stands behind is right."""
    if not parents:
        return accumulate(probabilities, mul)
    reached: list[float] = []
    for probability, parent in zip(probabilities, parents, strict=False):
        reached.append(probability * (reached[parent] if parent >= 0 else 1.0))
    return reached
