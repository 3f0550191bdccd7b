"""Models of the cost of a round against what was measured.

Two models are compared with the measurements. The Polish study's has two parameters, r and β
(Equations 5 and 6); they are fitted here. tokalign's own has none: a cost curve, measured before
the study, says what the rows and the draft passes of each round took (`project.py` decodes on a
simulated clock by the same costs; `lab/tests/study/test_cost_model.py` compares the two). The
drafters' own work on the host is not in a curve; each sample has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from lab.round_costs import RoundCosts, in_plain_passes, plain_time
from lab.study.conditions import Condition, order_of
from lab.study.samples import Sample, Trial, timed_greedily
from tokalign.runtime.cost import CostCurve
from tokalign.runtime.statistics import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Equations 5 and 6 at one draft length, beside what was measured.

    acceptance: of the chain, mean over prompts. speedup: mean over prompts. predicted: by
    Equation 5. break_even: r + β k, by Equation 6.
    """

    k: int
    prompts: int
    acceptance: float
    speedup: float
    predicted: float
    break_even: float

    @property
    def residual(self) -> float:
        """Measured less predicted speed-up."""
        return self.speedup - self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    """r and β of one way to draft, fitted to the time of its rounds.

    condition: with the shortest of the draft lengths. size_ratio: bytes of the draft model's
    weights over those of the target's, which the study takes for r. r, beta: by least squares; with
    one draft length r is the size ratio and only β is fitted. r_squared: share of the variance of
    round times that the fit explains; below 0 it explains less than their mean does.
    """

    condition: Condition
    size_ratio: float
    r: float
    beta: float
    r_squared: float
    predictions: tuple[Prediction, ...]


def fit_costs(trials: Sequence[Trial], size_ratios: Mapping[str, float]) -> list[CostFit]:
    """Fit the model to every chain that a draft model drafted at fixed lengths, greedily decoded.

    A round takes (k + 1) r + 1 + β k² plain passes. Its time is measured as tokens per round over
    speed-up, so that the fit needs no acceptance: between two tokenizers a pass does not bring
    exactly one id, and 1 + α k is not quite the number of tokens of a round.
    size_ratios: by the name of the draft model.
    """
    fits = []
    for label, conditions in _by_length(trials, size_ratios).items():
        points = {k: _points(c, trials) for k, c in conditions.items()}
        points = {k: found for k, found in points.items() if found}
        if label and points:
            size_ratio = size_ratios[conditions[min(points)].draft]
            fits.append(_fit(conditions[min(points)], points, size_ratio))
    return fits


def speedup_by_equation_5(acceptance: float, k: int, r: float, beta: float) -> float:
    """The Polish study's Equation 5."""
    return (1 + acceptance * k) / ((k + 1) * r + 1 + beta * k * k)


def break_even_by_equation_6(k: int, r: float, beta: float) -> float:
    """The Polish study's Equation 6, which leaves out r / k."""
    return r + beta * k


_Point = tuple[float, float, float]
"""Time of a round in plain passes, acceptance of the chain, speed-up."""


def _by_length(trials: Sequence[Trial], drafts: Iterable[str]) -> dict[str, dict[int, Condition]]:
    """Conditions that draft chains with a model, by label and by draft length."""
    found: dict[str, dict[int, Condition]] = {}
    known = set(drafts)
    of_trials = [pair for trial in trials for pair in trial.samples.items()]
    trees = {c for c, sample in of_trials if sample.drafted_trees}
    for condition in sorted({c for c, _ in of_trials} - trees, key=order_of):
        if condition.draft in known and isinstance(condition.k, int):
            found.setdefault(condition.label, {})[condition.k] = condition
    return found


def _points(condition: Condition, trials: Sequence[Trial]) -> list[_Point]:
    found = []
    for sample, speedup in timed_greedily(condition, trials):
        time = ratio(sample.later_tokens, sample.later_rounds) / speedup
        work = sample.work
        found.append((time, ratio(work.chain_accepted, work.chain_proposed), speedup))
    return found


def _fit(
    condition: Condition, points: Mapping[int, Sequence[_Point]], size_ratio: float
) -> CostFit:
    lengths = np.array([k for k, found in points.items() for _ in found], dtype=float)
    times = np.array([time for found in points.values() for time, *_ in found])
    if len(points) > 1:
        terms = np.stack([lengths + 1, lengths**2], axis=1)
        r, beta = np.linalg.lstsq(terms, times - 1, rcond=None)[0].tolist()
    else:
        r = size_ratio
        beta = float(np.mean((times - 1 - (lengths + 1) * r) / lengths**2))
    left = times - (1 + (lengths + 1) * r + beta * lengths**2)
    varied = float(((times - times.mean()) ** 2).sum())
    predictions = []
    for k, found in points.items():
        acceptance = fmean(a for _, a, _ in found)
        predictions.append(
            Prediction(
                k=k,
                prompts=len(found),
                acceptance=acceptance,
                speedup=fmean(s for *_, s in found),
                predicted=speedup_by_equation_5(acceptance, k, r, beta),
                break_even=break_even_by_equation_6(k, r, beta),
            )
        )
    return CostFit(
        condition=condition,
        size_ratio=size_ratio,
        r=r,
        beta=beta,
        r_squared=1 - float((left**2).sum()) / varied if varied else 0.0,
        predictions=tuple(predictions),
    )


# -- the cost curve --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a cost curve expects of one condition, beside what was measured; greedy prompts only.

    expected, measured: mean speed-up over prompts.
    """

    condition: Condition
    prompts: int
    expected: float
    measured: float

    @property
    def error(self) -> float:
        """By which share the expectation is too high."""
        return self.expected / self.measured - 1


def priced(trials: Sequence[Trial], curves: Mapping[str, CostCurve]) -> list[Condition]:
    """The conditions that draft, all of whose passes a curve has the cost of, in order.

    Curves of results that were written by earlier versions have no steps of a recurrent drafter.
    curves: by the name of the draft model.
    """
    found = {c for trial in trials for c in trial.samples if c.drafts}
    known = {c for c in found if not c.draft or curves[c.draft].draft_pass is not None}
    return sorted(known, key=order_of)


def costs_of(curve: CostCurve, sample: Sample) -> RoundCosts:
    """The costs of a sample of a `priced` condition, in plain passes.

    Passes are as the curve says for its context. The host's time is that of the curve, and what was
    measured of the sample's own rounds outside the target's pass, without the draft's passes.
    """
    costs = in_plain_passes(curve)
    rounds = max(1, sum(sample.work.rows.values()))
    own = sample.host_ms / 1e3 / plain_time(curve) - drafting_time(sample, costs) / rounds
    return replace(costs, host=costs.host + max(0.0, own))


def expected_time(sample: Sample, costs: RoundCosts) -> float:
    """Time of all rounds but the first, in plain passes."""
    passes = sum(count * costs.verify(m) for m, count in sample.work.rows.items())
    return passes + drafting_time(sample, costs) + rounds_with_host(sample) * costs.host


def drafting_time(sample: Sample, costs: RoundCosts) -> float:
    """Time of the draft model's passes in all rounds but the first."""
    drafts = rounds_with_host(sample)
    return costs.drafting(sample.work.later_passes, tree=sample.drafted_trees, drafts=drafts)


def rounds_with_host(sample: Sample) -> int:
    """Rounds in which the device waits for the host.

    With `auto` a round that proposes nothing runs ahead, as in plain decoding.
    """
    if isinstance(sample.condition.k, int):
        return sample.later_rounds
    return sum(count for m, count in sample.work.rows.items() if m > 1)


def expectations(trials: Sequence[Trial], curves: Mapping[str, CostCurve]) -> list[Expected]:
    """What the curves expect of every condition. curves: as of `priced`."""
    found = []
    for condition in priced(trials, curves):
        timed = list(timed_greedily(condition, trials))
        if timed:
            curve = curves[condition.draft]
            expected = [s.later_tokens / expected_time(s, costs_of(curve, s)) for s, _ in timed]
            found.append(
                Expected(
                    condition=condition,
                    prompts=len(timed),
                    expected=fmean(expected),
                    measured=fmean(speedup for _, speedup in timed),
                )
            )
    return found
