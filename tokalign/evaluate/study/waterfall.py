"""From plain decoding to the measured time of a token, step by step.

Every step is in plain passes per token. It begins at 1. Accepted tokens save passes; rows beyond
the first, draft passes and the host's work cost time. What is left between the sum and the
measured time is whatever the cost curve does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokalign.cost.curve import CostCurve
from tokalign.evaluate.measurements import Condition
from tokalign.evaluate.study.cost_model import costs_of, priced, rounds_with_host
from tokalign.evaluate.study.samples import Trial


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


def _waterfall(condition: Condition, trials: Sequence[Trial], curve: CostCurve) -> Waterfall | None:
    tokens, prompts = 0, 0
    saved = rows = drafting = host = total = 0.0
    for trial in trials:
        speedup = trial.speedup(condition)
        if speedup is None or trial.plain.temperature:
            continue
        sample = trial.samples[condition]
        costs, work = costs_of(curve, sample), sample.work
        prompts, tokens = prompts + 1, tokens + sample.later_tokens
        saved += sample.later_rounds - sample.later_tokens
        rows += sum(count * (costs.verify(m) - 1) for m, count in work.rows.items())
        drafting += work.later_passes * costs.draft_pass
        host += rounds_with_host(sample) * costs.host
        total += sample.later_tokens / speedup
    if not tokens:
        return None
    return Waterfall(
        condition=condition,
        prompts=prompts,
        saved=saved / tokens,
        rows=rows / tokens,
        drafting=drafting / tokens,
        host=host / tokens,
        rest=(total - tokens - saved - rows - drafting - host) / tokens,
    )
