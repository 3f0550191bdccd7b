"""What rounds cost where several requests share the target's passes, and which rows are worth it.

A pass over the rows of B requests costs C(rows of all). A request's own row costs its share of the
plain pass, C(B) / B, and a further row what it adds. So what a row brings is compared with what all
requests together would emit in the time that it takes: the rule for one request, with B = 1.

Example: C = (1, 1.1, 1.2, 1.3, ...) and B = 2. The plain pass gives 2 ids in 1.1, so a further row,
which takes 0.1, has to bring more than 0.18 ids. Alone it has to bring more than 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.tables.token_tree import TokenTree


class SharedRows(PassTimes):
    """Times by the rows of one request, of `requests` that share passes. Nothing is learned here.

    Rows are proposed at the price of the cheapest step that C has from here on. Where C has high
    steps, only the rows of several requests together may be worth one; `worth_verifying` decides.
    """

    def __init__(self, whole: PassTimes, requests: int) -> None:
        self._whole, self._others = whole, requests - 1
        table = whole.table(max(whole.reach, requests + 1))
        plain = table[requests - 1]
        self._share = plain / requests
        steps = enumerate(table[requests:], 1)
        self._row = max(0.0, min((time - plain) / count for count, time in steps))

    @property
    def is_calibrated(self) -> bool:
        return self._whole.is_calibrated

    @property
    def known(self) -> int:
        return max(1, self._whole.known - self._others)

    def observe(self, count: int, seconds: float) -> None:
        """Whoever runs the pass observes all of its rows."""

    def count_round(self) -> None:
        """As `observe`."""

    def table(self, most: int) -> tuple[float, ...]:
        return tuple([self._share + self._row * count for count in range(most)])


class SharedCosts(LearnedCosts):
    """Times of rounds of one request, of `requests` that share passes.

    alone: what is known of rounds. runs_ahead: whether the pass of this round has begun already.
    """

    def __init__(self, alone: LearnedCosts, requests: int, *, runs_ahead: bool) -> None:
        self._alone, self.runs_ahead = alone, runs_ahead
        self.rows = SharedRows(alone.rows, requests)
        hidden = alone.plain / alone.rows(1) if alone.ahead.is_calibrated else 1.0
        self.ahead = SharedRows(PassTimes([self.rows(1) * hidden], weight=1), 1)
        self._rereading = alone._rereading

    def observe_rereading(self, rows: int) -> None:
        self._alone.observe_rereading(rows)


def worth_verifying(
    trees: Sequence[tuple[TokenTree[Any], bool]], times: PassTimes
) -> list[TokenTree[Any]]:
    """The parts of all requests' trees that give the most tokens per time, whoever's they are.

    trees: each with whether it may be cut; one without probabilities is not. times: of passes by
    the rows of all. Ids are taken by how likely they are reached, as many as give the best rate.
    """
    cut = [may_be_cut and bool(tree.probabilities) for tree, may_be_cut in trees]
    rows = sum(1 if is_cut else 1 + len(tree) for (tree, _), is_cut in zip(trees, cut, strict=True))
    ranked = sorted(
        (-reached, index, number)
        for number, (tree, _) in enumerate(trees)
        if cut[number]
        for index, reached in enumerate(tree.reached)
    )[: max(0, times.reach - rows)]
    table = times.table(rows + len(ranked))
    tokens = accumulate((-negative for negative, _, _ in ranked), initial=float(len(trees)))
    rates = [expected / time for expected, time in zip(tokens, table[rows - 1 :], strict=True)]
    count = rates.index(max(rates))
    kept: list[list[int]] = [[] for _ in trees]
    for _, index, number in ranked[:count]:
        kept[number].append(index)
    return [
        tree.select(sorted(indices)) if is_cut else tree
        for (tree, _), is_cut, indices in zip(trees, cut, kept, strict=True)
    ]
