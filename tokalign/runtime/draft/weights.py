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
    other source names, unless it is recent (`mixing.RECENT`) and the source is none of `MODELS`.
    doubt: on top of `silent`, for each unit of the log-odds of the id that it finds most probable.
    """

    odds: float
    named: float
    silent: float
    alone: float = 0.0
    doubt: float = 0.0


WEIGHTS = {
    "dictionary": Weights(0.64, 1.24, -0.95, -1.16),
    "dictionary:chat": Weights(0.39, 0.66, -0.28, -0.54),
    "logits:3": Weights(-0.04, -0.07, -0.47, -0.74),
    "logits:2": Weights(0.02, -0.01, -0.54, -0.78),
    "logits:1": Weights(0.07, -0.14, -0.41, -1.03),
    "copy": Weights(0.78, 0.78, -1.03, 0.35, -0.41),
    "session": Weights(0.7, 0.0, -0.5),
    "draft": Weights(0.71, 0.35, -2.42, -0.49),
    "drafter": Weights(0.63, 0.52, -1.96, -0.91),
    "block": Weights(0.42, 0.54, -1.08, -2.2),
}
RANKS = {
    "dictionary": (-1.14, -0.99, -1.02, -2.96),
    "dictionary:chat": (-0.67, -0.62, -0.8, -2.46),
    "logits:3": (0.35, -0.07, -0.76, -1.73),
    "logits:2": (-0.02, -0.11, -0.53, -1.87),
    "logits:1": (-0.12, -0.35, -0.59, -1.54),
    "copy": (-0.06, -0.21, -1.29, -1.29),
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
