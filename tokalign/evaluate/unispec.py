"""UniSpec's calibration: one draft size for a machine, from smooth fits. Here for comparison.

The time of a step is fitted by a spline and the accepted tokens by a cubic; differential evolution
finds the draft size g with the highest tau(g) / s(g) (`cost.model.unispec_speedup`). tokalign's own
choice looks at every length of the measured staircase, which a smooth fit rounds off.
Source: Do, Le and Nguyen, "UniSpec" (ACL 2026, long paper 285).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokalign.cost.model import unispec_speedup
from tokalign.errors import MissingAssetError


@dataclass(frozen=True, slots=True)
class DraftSize:
    """A draft size and the speed-up that the fits promise of it; `size` before rounding."""

    length: int
    speedup: float
    size: float


def unispec_size(times: Mapping[int, float], tokens: Mapping[int, float]) -> DraftSize:
    """The best draft size.

    times: of a whole step by draft length, 0 included. tokens: per step by draft length, likewise;
    five lengths or more of each. Raises: MissingAssetError without scipy.
    """
    try:
        from scipy.interpolate import CubicSpline
        from scipy.optimize import differential_evolution
    except ImportError as error:
        raise MissingAssetError(
            "UniSpec's calibration needs scipy; install it with: pip install 'tokalign[unispec]'"
        ) from error
    lengths = sorted(times)
    time = CubicSpline(lengths, [times[g] for g in lengths])
    drafted = sorted(tokens)
    tau = np.polynomial.Polynomial.fit(drafted, [tokens[g] for g in drafted], deg=3)

    def speedup(g: float) -> float:
        return float(unispec_speedup(g, tokens=tau, time=time))

    longest = min(lengths[-1], drafted[-1])
    found = differential_evolution(lambda g: -speedup(g[0]), [(0, longest)], seed=0, tol=1e-8)
    size = float(found.x[0])
    length = max((int(size), int(size) + 1), key=lambda g: speedup(min(g, longest)))
    return DraftSize(min(length, longest), speedup(size), size)
