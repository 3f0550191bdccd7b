"""What the sources of a tree contribute to the log-odds of an id, before anything is learned.

Fitted together by logistic regression (`lab/benchmarks/weights_fit.py`) to greedy and sampled
answers of two real models, Polish prose of a third, and what a small target wrote beside a
recurrent drafter; then those of a draft model and of a block drafter beside these. What is called
`session`, and sources of unknown names, are assumed (`lab/results/free-sources.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Weights(NamedTuple):
    """What a source contributes to the log-odds of an id.

    odds: factor on the log-odds that it states. named: on top, for an id that it names. silent: for
    an id that it does not name while it names others. alone: on top of `named`, for an id that no
    other source names. doubt: on top of `silent`, for each unit of the log-odds of the id that it
    finds most probable.
    """

    odds: float
    named: float
    silent: float
    alone: float = 0.0
    doubt: float = 0.0


WEIGHTS = {
    "dictionary": Weights(0.62, 1.18, -0.63, -1.03),
    "logits:3": Weights(-0.04, -0.14, -0.48, -0.48),
    "logits:2": Weights(0.03, -0.06, -0.48, -0.27),
    "logits:1": Weights(0.07, -0.18, -0.46, -0.87),
    "copy": Weights(0.79, 0.58, -1.06, -0.02, -0.4),
    "session": Weights(0.7, 0.0, -0.5),
    "draft": Weights(0.71, 0.35, -2.42, -0.49),
    "drafter": Weights(0.68, 0.57, -2.0, -1.09),
    "block": Weights(0.44, 0.5, -1.17, -2.36),
}
RANKS = {
    "dictionary": (-0.92, -1.08, -1.2, -2.61),
    "logits:3": (0.34, -0.14, -0.9, -1.78),
    "logits:2": (-0.09, -0.29, -0.74, -2.11),
    "logits:1": (-0.14, -0.39, -0.66, -1.68),
    "copy": (-0.01, -0.18, -1.29, -1.29),
}
"""Shifts of log-odds for the ids that a source names first, second, third and later, where it is
the surest of them. They are the same at every depth."""

_OTHER = Weights(0.8, 0.0, -0.6)

USELESS = Weights(0.0, 0.0, 0.0, -3.5)
"""What a trained drafter contributes whose guesses are of another text."""

ALONE = Weights(1.0, 0.0, 0.0)
"""Weights of a source that nothing is mixed with: its probabilities are taken as they are."""

MODELS = ("draft", "drafter", "block")
"""Sources whose probabilities are taken as they are where no other source knows anything."""

TRAINED = frozenset(("drafter", "block"))
"""Sources that were trained for the target: there is one at most."""


def kind_of(name: str) -> str:
    """What the weights of a source are called by: its name, or the part of it before a colon."""
    return name if name in WEIGHTS else name.partition(":")[0]


def weights_of(name: str) -> Weights:
    """The weights of a source."""
    return WEIGHTS.get(kind_of(name), _OTHER)


def ranked_priors_of(name: str) -> Sequence[float]:
    """The shifts by rank of a source."""
    return RANKS.get(kind_of(name), ())
