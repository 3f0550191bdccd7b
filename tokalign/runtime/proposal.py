"""What a drafter and a verifier hand to the loop: a proposal and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

Array: TypeAlias = Any
"""An mlx array. Its type is not named here, so that this package can be read without mlx."""

TARGET = "target"
"""The source of a token that no drafter proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A guess at how the target goes on, and what drafting it cost.

    tree: the ids to verify in one pass, one row each; empty where a drafter has no guess.
    draft_passes: passes of a draft model; counts: what translation did (`docs/metrics.md`).
    model_seconds: time spent in those passes; the rest of a drafter's time is host time.
    translation_seconds: the host's time between those passes and the ids.
    run_ahead: nothing will be proposed in the next round either, so its pass may start now.
    parked: nothing has been worth proposing for long, so nothing is stored for later drafts.
    """

    tree: TokenTree[TargetId] = EMPTY_TREE
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    model_seconds: float = 0.0
    translation_seconds: float = 0.0
    run_ahead: bool = False
    parked: bool = False


class Rows(Sequence[Array]):
    """Some rows of an array f[rows, ...], or by row, each taken only when it is asked for."""

    __slots__ = ("_array", "_chosen")

    def __init__(
        self, array: Sequence[Array] | Mapping[int, Array] | Array, chosen: Sequence[int]
    ) -> None:
        self._array, self._chosen = array, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Rows(self._array, self._chosen[at])
        return self._array[self._chosen[at]]


class Verdict(NamedTuple):
    """The target's answer: the accepted path through the proposal, then one id of its own.

    path: indices of the proposed ids that were accepted; the first of `ids` are these.
    rows: how many rows the target computed for it, steps that fill in a long prompt excluded.
    logprobs: for each id f[vocabulary], lazy; None when no model was asked.
    """

    ids: tuple[TargetId, ...]
    path: tuple[int, ...]
    rows: int
    logprobs: Sequence[Array] | None = None
    model_seconds: float = 0.0
