"""What is learned about sources: how often they are right where they say what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from math import exp
from typing import Any, TypeAlias

from tokalign.runtime.draft.weights import ranked_priors_of
from tokalign.tokenizer.vocabulary import TargetId

LEAST = 0.005
"""The least distance of a probability from 0 and 1; nearer ones are moved there."""

_PRECISION = 3.0
"""Precision of the normal prior of a shift, by which shifts of about 0.6 are usual."""


_TRUST_RATE = 0.02

RANKED, LAST_RANK, DEEPEST = 8, 3, 3
"""Added to a depth, so that the two kinds of situations differ; later ranks and greater depths are
one situation."""


class Shift:
    """What is known of one situation. factor: what the odds of guesses are multiplied by.
    information: what that rests on."""

    __slots__ = ("factor", "information")

    def __init__(self, factor: float = 1.0, information: float = _PRECISION) -> None:
        self.factor, self.information = factor, information


Situation: TypeAlias = tuple[int, int, int]

Candidate: TypeAlias = tuple[TargetId, float, str, Shift, Shift, float]
"""An id that may come next, its probability before the noise of sampling is looked at, the source
that is surest of it, what was learned in its two situations, and what its log-odds change by as the
reliance on the trained drafter grows. A round makes hundreds of them, too many for objects of a
class."""


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
        self.of = defaultdict[Hashable, Shift](Shift)

    def learned(self) -> list[tuple[Any, float, float]]:
        """What was learned: each situation with its factor and the information that it rests on."""
        return [
            (situation, shift.factor, shift.information)
            for situation, shift in self.of.copy().items()  # other threads go on learning
            if shift.information > _PRECISION or shift.factor != 1.0
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


_PRECISION_OF_RELIANCE, _RELIANCE_RATE = 8.0, 0.01
_MOST_RELIANCE = 1.2


class Reliance:
    """How far a trained drafter is what its weights were fitted to, at one depth of the tree.

    1: its weights hold. 0: its guesses are of another text (`USELESS`). In between they are mixed.
    One number is learned within a dozen guesses, by a Newton step for each place of the text.
    """

    def __init__(self) -> None:
        self.value, self._information = 1.0, _PRECISION_OF_RELIANCE

    def learn(self, candidates: Sequence[Candidate], emitted: TargetId) -> None:
        """`emitted` was emitted where `candidates` were predicted."""
        gradient, information = 0.0, self._information
        for token, probability, _, _, _, slope in candidates:
            gradient += slope * ((token == emitted) - probability)
            information += slope * slope * probability * (1.0 - probability)
        self._information = information
        value = self.value + max(1.0 / information, _RELIANCE_RATE) * gradient
        self.value = min(max(value, 0.0), _MOST_RELIANCE)


class Mixing:
    """What has been learned about sources. It holds no text, so requests may share it."""

    def __init__(self) -> None:
        self._trust: dict[tuple[str, ...], Trust] = {}
        self.reliance = defaultdict[str, list[Reliance]](
            lambda: [Reliance() for _ in range(DEEPEST + 1)]
        )
        """That on each trained drafter, by depth."""

    def trust(self, names: tuple[str, ...]) -> Trust:
        """What was learned about these sources together, in this order."""
        if names not in self._trust:
            trust = self._trust[names] = Trust(rate=_TRUST_RATE)
            if len(names) > 1:
                trust.restore(recorded_priors(names))
        return self._trust[names]

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The sources about which something was learned together."""
        return list(self._trust)


def recorded_priors(names: Sequence[str]) -> list[tuple[Situation, float, float]]:
    """What is known of ranks before anything is learned, as `Trust.restore` takes it."""
    return [
        ((place, rank, RANKED + depth), exp(shift), _PRECISION)
        for place, name in enumerate(names)
        for rank, shift in enumerate(ranked_priors_of(name))
        for depth in range(DEEPEST + 1)
    ]
