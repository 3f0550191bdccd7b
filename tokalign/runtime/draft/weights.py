"""What the sources of a tree contribute to the log-odds of an id, before anything is learned.

Weights of a copy, of a dictionary and of the three logits were fitted together by logistic
regression to greedy and sampled answers of two real models and to Polish prose, on the path of the
text and two ids ahead (`lab/results/free-sources.md`). Those of a draft model lie between fits with
greedy and with sampled texts, and between two draft models (`lab/results/trees.md`). Those of
trained drafters were fitted to what a small target wrote greedily, beside earlier weights of the
others, which are kept for that (`lab/results/block-drafter.md`). The rest are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

_Known = TypeVar("_Known")


class Weights(NamedTuple):
    """What a source contributes to the log-odds of an id.

    odds: factor on the log-odds that it states. named: on top, for an id that it names. silent: for
    an id that it does not name while it names others. alone: instead of `named`, for an id that no
    other source names; only of trained drafters. doubt: on top of `silent`, for each unit of the
    log-odds of the id that it finds most probable.
    """

    odds: float
    named: float
    silent: float
    alone: float = 0.0
    doubt: float = 0.0


class Fit(NamedTuple):
    """What was fitted together, by the name of a source or by the part of it before a colon.

    ranks: shifts of log-odds for the ids that a source names first, second, third and later, where
    it is the surest of them. They are the same at every depth.
    """

    weights: Mapping[str, Weights]
    ranks: Mapping[str, Sequence[float]]


WEIGHTS = {
    "dictionary": Weights(0.83, 1.61, -0.65),
    "logits:3": Weights(0.02, -0.11, -0.54),
    "logits:2": Weights(0.0, 0.25, -0.61),
    "logits:1": Weights(0.06, -0.02, -0.58),
    "copy": Weights(0.82, 1.37, -1.06, doubt=-0.39),
    "session": Weights(0.7, 0.0, -0.5),
    "draft": Weights(1.0, 2.2, -0.9),
    "drafter": Weights(0.8, 3.1, -1.6, -0.2),
    "block": Weights(0.8, 3.1, -1.3, -0.2),
}
_USUAL = Fit(
    WEIGHTS,
    {
        "dictionary": (-1.89, -1.78, -2.11, -2.57),
        "logits:3": (-0.71, -0.57, -1.23, -2.22),
        "logits:2": (-1.05, -0.67, -1.37, -2.71),
        "logits:1": (-0.88, -1.2, -1.65, -2.88),
        "copy": (-1.35, -1.29, -1.29, -1.29),
    },
)
_BESIDE_TRAINED = Fit(
    {
        **WEIGHTS,
        "dictionary": Weights(0.95, 0.08, -1.2),
        "logits:3": Weights(0.12, -0.02, -1.23),
        "logits:2": Weights(0.26, 0.05, -0.67),
        "logits:1": Weights(0.28, 0.06, -0.67),
        "copy": Weights(1.0, 0.46, -1.8),
    },
    {
        "logits:3": (-1.68, 1.02, 1.03, 0.69),
        "logits:2": (-0.78, 1.26, 1.23, 0.64),
        "logits:1": (-0.32, 0.87, 0.64, -0.05),
    },
)

_OTHER = Weights(0.8, 0.0, -0.6)

USELESS = Weights(0.0, 0.0, 0.0, -3.5)
"""What a trained drafter contributes whose guesses are of another text."""

ALONE = Weights(1.0, 0.0, 0.0)
"""Weights of a source that nothing is mixed with: its probabilities are taken as they are."""

MODELS = ("draft", "drafter", "block")
"""Sources whose probabilities are taken as they are where no other source knows anything."""

TRAINED = frozenset(("drafter", "block"))
"""Sources that were trained for the target: there is one at most."""


def weights_of(name: str, names: Sequence[str] = ()) -> Weights:
    """The weights of a source beside those of `names`."""
    return _of_kind(_fit_for(names).weights, name, _OTHER)


def ranked_priors_of(name: str, names: Sequence[str] = ()) -> Sequence[float]:
    """The shifts by rank of a source beside those of `names`."""
    return _of_kind(_fit_for(names).ranks, name, ())


def _fit_for(names: Sequence[str]) -> Fit:
    return _USUAL if TRAINED.isdisjoint(names) else _BESIDE_TRAINED


def _of_kind(known: Mapping[str, _Known], name: str, default: _Known) -> _Known:
    return known.get(name) or known.get(name.partition(":")[0], default)
