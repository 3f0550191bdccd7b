"""What rounds cost by a curve: rows of the target, passes of the draft model, and the host."""

from __future__ import annotations

from dataclasses import dataclass

from tokalign.runtime.cost import CostCurve
from tokalign.runtime.draft.costs import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts(Costs):
    """Costs of passes, and of the rest of a round.

    host: the rest of a round that has a proposal. tree_pass: of the draft model where it goes on
    after several texts of a tree, as every pass of one but the first does; None: the same as
    `draft_pass`. reading: of the draft model for each id of the target that it has not read.
    """

    host: float = 0.0
    tree_pass: float | None = None
    reading: float = 0.0

    def drafting(self, passes: int, *, tree: bool, drafts: int = 1) -> float:
        """Time of so many drafts of this many passes of the draft model together. tree: whether
        they grew trees."""
        further = self.tree_pass if tree and self.tree_pass is not None else self.draft_pass
        first = min(drafts, passes)
        return first * self.draft_pass + (passes - first) * further

    def round(self, proposed: int, passes: int = 0, *, tree: bool = False) -> float:
        """Time of a round. proposed: ids that it verifies. passes: of the draft model for them.

        tree: as of `drafting`. A round without a proposal is one of plain decoding, which runs
        ahead.
        """
        host = self.host if proposed else 0.0
        return self.verify(1 + proposed) + host + self.drafting(passes, tree=tree)


def plain_time(curve: CostCurve) -> float:
    """Time per token of plain decoding, which runs ahead; at least half of C(1)."""
    single = curve.rows[1].median
    return max(single - curve.host, single / 2)


def in_plain_passes(curve: CostCurve) -> RoundCosts:
    """What rounds cost, in passes of plain decoding; the host's work is apart."""
    times, plain = curve.row_times, plain_time(curve)
    host, draft, tree = times[0] - plain, curve.draft_pass, curve.tree_pass
    return RoundCosts(
        rows=tuple((time - host) / plain for time in times),
        draft_pass=0.0 if draft is None else draft.median / plain,
        host=host / plain,
        tree_pass=None if tree is None else tree.median / plain,
    )
