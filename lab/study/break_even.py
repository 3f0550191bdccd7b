"""The acceptance at which drafting begins to pay: a line fitted through (acceptance, speed-up)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean

from tokalign.errors import MissingAssetError
from tokalign.installation import install_line

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where a line fitted through (acceptance, speed-up) crosses a speed-up of 1.

    low, high: the interval of `confidence`; infinite where the slope is 0. deviation: the standard
    error of `acceptance`, by the delta method.
    """

    acceptance: float
    low: float
    high: float
    deviation: float
    slope: float
    intercept: float
    r_squared: float
    confidence: float = CONFIDENCE


def fit_break_even(acceptance: Sequence[float], speedup: Sequence[float]) -> BreakEven | None:
    """Fit a line by ordinary least squares and apply the delta method to (1 - intercept) / slope.

    Returns None for fewer than three points, or if all have the same acceptance.
    Raises: MissingAssetError without scipy.
    Source: Fonal (arXiv 2604.16368), section 5.4; the delta method as in Wasserman, "All of
    Statistics", section 9.9; Student's t with n - 2 degrees of freedom.
    """
    if len(acceptance) < 3 or min(acceptance) == max(acceptance):
        return None
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingAssetError(
            f"a break-even needs scipy; install it with: {install_line(extra='lab')}"
        ) from error
    line = stats.linregress(acceptance, speedup)
    slope, intercept = float(line.slope), float(line.intercept)
    crossing = (1 - intercept) / slope if slope else inf
    deviation = margin = inf
    if slope:
        # The variance of the fitted line at the crossing, divided by the square of the slope.
        tilt = crossing * (crossing - 2 * fmean(acceptance)) * line.stderr**2
        deviation = sqrt(max(0.0, line.intercept_stderr**2 + tilt)) / abs(slope)
        margin = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(acceptance) - 2)) * deviation
    return BreakEven(
        acceptance=crossing,
        low=crossing - margin if slope else -inf,
        high=crossing + margin,
        deviation=deviation,
        slope=slope,
        intercept=intercept,
        r_squared=float(line.rvalue) ** 2,
    )


def break_even_text(fit: BreakEven | None) -> str:
    """Show a dash where more acceptance did not mean more speed; above 1 drafting never pays."""
    if fit is None or fit.slope <= 0 or not isfinite(fit.acceptance):
        return "–"
    if fit.acceptance > 1:
        return "> 1"
    return f"{fit.acceptance:.2f} ({fit.low:.2f} to {fit.high:.2f})"
