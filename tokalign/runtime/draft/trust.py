"""Making a source's probabilities come true as often as they say, from what has come so far.

Trust is a shift in log-odds, one number per situation, moved by the gradient of the log-loss after
each guess. A shift carries over from one probability to all others, so a context that repeats
itself is recognized within a dozen tokens; a table of observed frequencies (probability bucket ->
Beta estimate) would have to learn each bucket apart (`benchmarks/context_copy.py calibration`
compares the two).
Source: the secondary estimation and mixing of context-mixing compressors (Mahoney, "Adaptive
weighing of context models for lossless data compression", 2005), reduced to the bias term.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import exp

LEAST = 0.005
"""No probability is taken to be nearer to 0 or 1 than this."""

_PRECISION = 3.0
"""Of the prior of a shift: shifts of about 0.6 are usual."""


class Trust:
    """How much more or less often than said a source is right, by situation.

    The step is that of a Bayesian estimate of the shift (a normal prior, Laplace's approximation):
    large at first, smaller with every guess that could have told something, but never below `rate`,
    so that it follows a text that changes.
    Cost: about 0.4 µs per probability, 0.8 µs per guess learned from.
    """

    def __init__(self, *, rate: float) -> None:
        self._rate = rate
        self._factors: dict[Hashable, float] = {}  # of the odds: e to the shift
        self._information: dict[Hashable, float] = {}

    def calibrated(self, probability: float, situation: Hashable, start: float = 1.0) -> float:
        """`probability` as it has turned out in such a situation.

        start: what the odds are multiplied by before anything was learned.
        """
        kept = LEAST if probability < LEAST else min(probability, 1.0 - LEAST)
        odds = kept * self._factors.get(situation, start)
        return odds / (1.0 - kept + odds)

    def learn(self, said: float, situation: Hashable, *, right: bool, start: float = 1.0) -> None:
        """A guess of calibrated probability `said` was right or wrong."""
        information = self._information.get(situation, _PRECISION) + said * (1.0 - said)
        self._information[situation] = information
        step = max(self._rate, 1.0 / information)
        factor = self._factors.get(situation, start)
        self._factors[situation] = factor * exp(step * (right - said))
