"""How far stated probabilities hold in a text, by situation: what is learned from every guess."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import exp
from typing import Any

LEAST = 0.005
"""The least distance of a probability from 0 and 1; nearer ones are moved there."""

PRECISION = 3.0
"""Precision of the normal prior of a shift, by which shifts of about 0.6 are usual."""


class Shift:
    """What is known of one situation. factor: what the odds of guesses are multiplied by.
    information: what that rests on."""

    __slots__ = ("factor", "information")

    def __init__(self, factor: float = 1.0, information: float = PRECISION) -> None:
        self.factor, self.information = factor, information


class _Shifts(dict[Hashable, Shift]):
    def __missing__(self, situation: Hashable) -> Shift:
        shift = self[situation] = Shift()
        return shift


class Trust:
    """How much more or less often a source is right than it states, by situation.

    It is a shift in log-odds, which holds for all probabilities alike, so that a text that repeats
    itself is recognized within a dozen tokens. A table of observed frequencies has to learn each
    probability separately. Source: the secondary estimation of Mahoney's, reduced to the bias term.
    The step is that of a Bayesian estimate of the shift (a normal prior, Laplace's approximation).
    It is large at first and gets smaller with every informative guess, but never smaller than
    `rate`, so that trust follows a text that changes.
    of: the shifts, by situation. Whoever guesses keeps the shift, so that nothing is looked up
    again when it is learned from.
    """

    def __init__(self, *, rate: float) -> None:
        self._rate = rate
        self.of: dict[Hashable, Shift] = _Shifts()

    def learned(self) -> list[tuple[Any, float, float]]:
        """What was learned: each situation with its factor and the information that it rests on."""
        return [
            (situation, shift.factor, shift.information)
            for situation, shift in self.of.copy().items()  # other threads go on learning
            if shift.information > PRECISION or shift.factor != 1.0
        ]

    def restore(self, learned: Iterable[tuple[Any, float, float]]) -> None:
        for situation, factor, information in learned:
            self.of[situation] = Shift(factor, information)

    def calibrated(self, probability: float, situation: Hashable) -> float:
        """A stated probability, corrected by what has come in this situation."""
        kept = LEAST if probability < LEAST else min(probability, 1.0 - LEAST)
        odds = kept * self.of[situation].factor
        return odds / (1.0 - kept + odds)

    def learn(self, guesses: Iterable[tuple[float, Shift, bool]]) -> None:
        """Guesses, each with its calibrated probability and shift, were right or wrong."""
        slowest = self._rate
        for probability, shift, right in guesses:
            information = shift.information + probability * (1.0 - probability)
            shift.information = information
            step = 1.0 / information
            if step < slowest:
                step = slowest
            shift.factor *= exp(step * (right - probability))
