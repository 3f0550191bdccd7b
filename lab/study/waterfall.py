"""From plain decoding to the measured time of a token, step by step.

Every step is in plain passes per token. It begins at 1. Accepted tokens save passes; rows beyond
the first, draft passes and the host's work cost time. What is left between the sum and the
measured time is whatever the cost curve does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.study.conditions import Condition
from lab.study.cost_model import costs_of, drafting_time, priced, rounds_with_host
from lab.study.samples import Sample, Trial, timed_greedily
from tokalign.runtime.cost import CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """The time of a token under one condition, greedily decoded, in plain passes.

    saved: by accepted tokens, negative. rows, drafting, host: what they cost. rest: what is
    measured beyond that, or below it. total: as measured, 1 / speed-up.
    """

    condition: Condition
    prompts: int
    saved: float
    rows: float
    drafting: float
    host: float
    rest: float

    @property
    def total(self) -> float:
        """The measured time of a token."""
        return 1 + self.saved + self.rows + self.drafting + self.host + self.rest

    @property
    def steps(self) -> dict[str, float]:
        """The steps by name, in order."""
        return {
            "accepted tokens": self.saved,
            "further rows": self.rows,
            "draft passes": self.drafting,
            "host": self.host,
            "not explained": self.rest,
        }


def waterfalls(trials: Sequence[Trial], curves: Mapping[str, CostCurve]) -> list[Waterfall]:
    """One for each condition whose costs are known. curves: as of `priced`."""
    found = [_waterfall(c, trials, curves[c.draft]) for c in priced(trials, curves)]
    return [one for one in found if one is not None]


def measured_ends(timed: Sequence[tuple[Sample, float]]) -> tuple[float, float]:
    """What accepted tokens save of a token's time, and its measured time, in plain passes.

    timed: at least one sample with its speed-up.
    """
    tokens = sum(sample.later_tokens for sample, _ in timed)
    rounds = sum(sample.later_rounds for sample, _ in timed)
    return rounds / tokens - 1, sum(s.later_tokens / speedup for s, speedup in timed) / tokens


def _waterfall(condition: Condition, trials: Sequence[Trial], curve: CostCurve) -> Waterfall | None:
    timed = list(timed_greedily(condition, trials))
    if not timed:
        return None
    tokens = sum(sample.later_tokens for sample, _ in timed)
    rows = drafting = host = 0.0
    for sample, _ in timed:
        costs, work = costs_of(curve, sample), sample.work
        rows += sum(count * (costs.verify(m) - 1) for m, count in work.rows.items()) / tokens
        drafting += drafting_time(sample, costs) / tokens
        host += rounds_with_host(sample) * costs.host / tokens
    saved, total = measured_ends(timed)
    return Waterfall(
        condition=condition,
        prompts=len(timed),
        saved=saved,
        rows=rows,
        drafting=drafting,
        host=host,
        rest=total - 1 - saved - rows - drafting - host,
    )
