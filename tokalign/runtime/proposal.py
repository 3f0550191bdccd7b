"""What a drafter and a verifier hand to the loop: one guess, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias

from tokalign.vocab import TargetId

Array: TypeAlias = Any
"""An mlx array. Its type is not named here, so that this package can be read without mlx."""

TARGET = "target"
"""The source of a token that no drafter proposed."""


@dataclass(frozen=True, slots=True)
class Guess:
    """How one source thinks the target goes on.

    probabilities: for each id, that it is right if those before it are; calibrated, that is, as
    often true as it says.
    """

    ids: tuple[TargetId, ...]
    probabilities: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A guess at how the target goes on; empty where a drafter has none.

    sources: for each id the drafter it comes from. probabilities: as in `Guess`, as far as they
    are known; fewer than `ids` otherwise.
    draft_passes: passes of a draft model; counts: what translation did (`docs/metrics.md`).
    model_seconds: time spent in those passes; the rest of a drafter's time is host time.
    run_ahead: nothing will be proposed in the next round either, so its pass may start now.
    """

    ids: tuple[TargetId, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    model_seconds: float = 0.0
    run_ahead: bool = False

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.sources):
            raise ValueError(f"{len(self.ids)} ids with {len(self.sources)} sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the target says: the accepted head of the proposal, then one id of its own.

    logprobs: f[rows, vocabulary], lazy, row i belongs to `ids[i]`; None when no model was asked.
    """

    ids: tuple[TargetId, ...]
    accepted: int
    logprobs: Array | None = None
    model_seconds: float = 0.0


def matching(proposed: tuple[TargetId, ...], chosen: list[TargetId]) -> int:
    """How many leading ids agree."""
    pairs = zip(proposed, chosen, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
