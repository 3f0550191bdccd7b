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
    "dictionary": Weights(0.63, 1.01, -0.92, -1.18),
    "logits:3": Weights(-0.04, -0.05, -0.46, -0.69),
    "logits:2": Weights(0.02, -0.01, -0.51, -0.71),
    "logits:1": Weights(0.07, -0.09, -0.41, -0.99),
    "copy": Weights(0.77, 0.75, -1.08, 0.37, -0.4),
    "session": Weights(0.7, 0.0, -0.5),
    "draft": Weights(0.71, 0.35, -2.42, -0.49),
    "drafter": Weights(0.65, 0.63, -1.92, -0.99),
    "block": Weights(0.42, 0.54, -1.08, -2.2),
}
RANKS = {
    "dictionary": (-1.08, -1.22, -1.33, -2.74),
    "logits:3": (0.31, -0.11, -0.8, -1.8),
    "logits:2": (-0.06, -0.12, -0.57, -1.9),
    "logits:1": (-0.18, -0.43, -0.62, -1.59),
    "copy": (-0.08, -0.26, -1.29, -1.29),
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
