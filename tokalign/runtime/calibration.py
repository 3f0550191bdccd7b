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
from math import exp, log

LEAST = 0.005
"""No probability is taken to be nearer to 0 or 1 than this."""


def log_odds(probability: float) -> float:
    """The log-odds of a probability, which is kept off 0 and 1."""
    kept = min(max(probability, LEAST), 1.0 - LEAST)
    return log(kept / (1.0 - kept))


class Trust:
    """How much more or less often than said a source is right, by situation.

    rate: how fast it learns; 0.1 forgets within some dozens of guesses.
    Cost: about 0.5 µs per probability.
    """

    def __init__(self, *, rate: float) -> None:
        self._rate = rate
        self._shifts: dict[Hashable, float] = {}

    def calibrated(self, probability: float, situation: Hashable, start: float = 0.0) -> float:
        """`probability` as it has turned out in such a situation; `start`: the shift at first."""
        shift = self._shifts.get(situation, start)
        return 1.0 / (1.0 + exp(-log_odds(probability) - shift))

    def learn(self, said: float, situation: Hashable, *, right: bool, start: float = 0.0) -> None:
        """A guess of calibrated probability `said` was right or wrong."""
        shift = self._shifts.get(situation, start)
        self._shifts[situation] = shift + self._rate * (right - said)
