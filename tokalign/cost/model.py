"""What speculative decoding is worth by the formulas of the literature.

alpha: share of the drafted tokens that are accepted. k: tokens drafted in a round. Times are in
passes of the target over one row, so a speed-up of 1 is plain decoding. `docs/metrics.md` says
where each formula comes from and where its published figures differ from it. tokalign itself
decides by a measured cost curve (`runtime/gain/plan.py`), not by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, pi, sqrt, tan
from statistics import NormalDist, fmean

# -- Leviathan et al. (2023) -----------------------------------------------------------------------


def leviathan_speedup(alpha: float, k: int, draft_pass: float) -> float:
    """Walltime improvement where each token is accepted with probability alpha, on its own.

    Verifying k + 1 rows is taken to cost as much as one.
    Source: "Fast Inference from Transformers via Speculative Decoding", theorem 3.8.
    """
    tokens = k + 1.0 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)
    return tokens / (k * draft_pass + 1)


# -- unified memory: Fonal (2026) ------------------------------------------------------------------


def unified_memory_speedup(alpha: float, k: int, *, r: float, beta: float) -> float:
    """(1 + alpha k) / ((k + 1) r + 1 + beta k²).

    r: a pass of the draft model. beta: how verification grows with the square of k.
    Source: Fonal, "Cross-Family Speculative Decoding for Polish Language Models on Apple Silicon"
    (arXiv 2604.16368), equation 5.
    """
    return (1 + alpha * k) / ((k + 1) * r + 1 + beta * k * k)


def break_even(k: int, *, r: float, beta: float) -> float:
    """The alpha at which `unified_memory_speedup` is 1: r (k + 1) / k + beta k."""
    return r * (k + 1) / k + beta * k


def approximate_break_even(k: int, *, r: float, beta: float) -> float:
    """r + beta k, the study's own approximation; it leaves out r / k of `break_even`."""
    return r + beta * k


# -- Do, Le and Nguyen (2026) ----------------------------------------------------------------------


def unispec_speedup(
    g: float, *, tokens: Callable[[float], float], time: Callable[[float], float]
) -> float:
    """tau(g) / s(g) at draft size g.

    tokens: tau, tokens gained by a step that verifies g drafted ones. time: of such a step, in any
    unit; s is its ratio to that of a step without a draft.
    Source: "UniSpec" (ACL 2026, long paper 285), its device-aware calibration.
    """
    return tokens(g) * time(0) / time(g)


# -- from measurements -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where a line fitted through (acceptance, speed-up) crosses 1.

    low, high: the interval of `confidence`; infinite where the slope is not told from 0, or where
    there are too few points. deviation: of `acceptance`, by the delta method.
    """

    acceptance: float
    low: float
    high: float
    deviation: float
    slope: float
    intercept: float
    r_squared: float
    confidence: float


def fit_break_even(
    acceptance: Sequence[float], speedup: Sequence[float], *, confidence: float = 0.95
) -> BreakEven | None:
    """Ordinary least squares, then the delta method on (1 - intercept) / slope.

    None for fewer than three points, or without any spread in acceptance.
    Source: the delta method as in Wasserman, "All of Statistics", section 9.9; Student's t with
    n - 2 degrees of freedom.
    """
    count = len(acceptance)
    if count != len(speedup):
        raise ValueError(f"{count} acceptances with {len(speedup)} speed-ups")
    if count < 3:
        return None
    mean_x, mean_y = fmean(acceptance), fmean(speedup)
    spread = sum((x - mean_x) ** 2 for x in acceptance)
    if spread == 0:
        return None
    pairs = list(zip(acceptance, speedup, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    intercept = mean_y - slope * mean_x
    residual = sum((y - intercept - slope * x) ** 2 for x, y in pairs)
    total = sum((y - mean_y) ** 2 for y in speedup)
    crossing = (1 - intercept) / slope if slope else inf
    # The variance of (1 - a) / b, with those of a and b and their covariance put in, is that of a
    # prediction at the crossing over b².
    variance = residual / (count - 2) * (1 / count + (crossing - mean_x) ** 2 / spread)
    deviation = sqrt(variance) / abs(slope) if slope else inf
    margin = _student_t(0.5 + confidence / 2, count - 2) * deviation
    return BreakEven(
        acceptance=crossing,
        low=crossing - margin if slope else -inf,
        high=crossing + margin,
        deviation=deviation,
        slope=slope,
        intercept=intercept,
        r_squared=1 - residual / total if total else 1.0,
        confidence=confidence,
    )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Measurements whose acceptance lies in [low, high); the last bucket holds its end too."""

    low: float
    high: float
    count: int
    mean_speedup: float


def acceptance_buckets(
    acceptance: Sequence[float],
    speedup: Sequence[float],
    edges: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
) -> list[Bucket]:
    """Mean speed-up by acceptance; 0 where a bucket is empty."""
    pairs = list(zip(acceptance, speedup, strict=True))
    buckets = []
    for low, high in pairwise(edges):
        last = high == edges[-1]
        inside = [y for x, y in pairs if low <= x < high or (last and x == high)]
        buckets.append(Bucket(low, high, len(inside), fmean(inside) if inside else 0.0))
    return buckets


def joules_per_token(watts: float, tokens_per_second: float) -> float:
    """Energy of one token, from mean power while generating."""
    return watts / tokens_per_second


def _student_t(probability: float, degrees: int) -> float:
    """A quantile of Student's t, within 1 % from 3 degrees of freedom up, exactly for 1 and 2.

    Source: Abramowitz and Stegun, 26.7.5 (Cornish-Fisher); 1 and 2 in closed form.
    """
    z = NormalDist().inv_cdf(probability)
    if degrees == 2:
        spread = 2 * probability - 1
        return spread * sqrt(2 / (1 - spread**2))
    if degrees == 1:
        return tan(pi * (probability - 0.5))
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(sum(term / degrees**power for power, term in enumerate(terms)))
