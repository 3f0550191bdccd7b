"""What a drafter and a verifier hand to the loop: one guess, one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from tokalign.tokenizer.vocabulary import TargetId

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

    It is a chain of ids, each behind the one before it, or a tree that also says what else might
    come in the place of some: verified in one pass, one row per id.
    sources: for each id the drafter it comes from. probabilities: as in `Guess`, as far as they
    are known; fewer than `ids` otherwise.
    parents: for each id the index of the one it stands behind, -1 for the committed text; parents
    before children, the likeliest chain first. Empty for a chain.
    laws: for each id f[1, vocabulary], lazy, what it was drawn from; None, or missing at the end,
    if it was not drawn. Whether an id with a law is proposed must not depend on which one was
    drawn: who cuts or ranks by the ids themselves leaves their laws out.
    draft_passes: passes of a draft model; counts: what translation did (`docs/metrics.md`).
    model_seconds: time spent in those passes; the rest of a drafter's time is host time.
    translation_seconds: the host's time between those passes and the ids.
    run_ahead: nothing will be proposed in the next round either, so its pass may start now.
    """

    ids: tuple[TargetId, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    parents: tuple[int, ...] = ()
    laws: tuple[Array | None, ...] = ()
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    model_seconds: float = 0.0
    translation_seconds: float = 0.0
    run_ahead: bool = False

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.sources):
            raise ValueError(f"{len(self.ids)} ids with {len(self.sources)} sources")
        if self.laws and self.probabilities and any(law is not None for law in self.laws):
            raise ValueError("ids with laws and probabilities: nobody may choose among drawn ids")
        if self.parents and len(self.parents) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids with {len(self.parents)} parents")

    @property
    def behind(self) -> Sequence[int]:
        """For each id the index of the one it stands behind, -1 for the committed text."""
        return self.parents or range(-1, len(self.ids) - 1)

    @property
    def chain_length(self) -> int:
        """How many leading ids stand each behind the one before it."""
        return next((i for i, p in enumerate(self.parents) if p != i - 1), len(self.ids))

    def only(self, kept: Sequence[int]) -> Proposal:
        """The ids at these indices, in ascending order; each with all that it stands behind."""
        place = {-1: -1} | {index: new for new, index in enumerate(kept)}
        known = [index for index in kept if index < len(self.probabilities)]
        return replace(
            self,
            ids=tuple(self.ids[i] for i in kept),
            sources=tuple(self.sources[i] for i in kept),
            probabilities=tuple(self.probabilities[i] for i in known),
            parents=tuple(place[self.parents[i]] for i in kept) if self.parents else (),
        )

    def chain_guess(self, source: str, believe: Callable[[int], Sequence[float]]) -> Guess:
        """The leading chain as a guess; what it does not say of its ids is `believe(length)`."""
        chain = self.ids[: self.chain_length]
        said = self.probabilities[: len(chain)]
        return Guess(chain, (*said, *believe(len(chain))[len(said) :]), source)

    def at_cost_of(self, other: Proposal) -> Proposal:
        """The same ids, at what drafting `other` has cost and with what was counted then."""
        return replace(
            self,
            draft_passes=other.draft_passes,
            counts=other.counts,
            model_seconds=other.model_seconds,
            translation_seconds=other.translation_seconds,
        )

    def beside(self, tree: Proposal) -> Proposal:
        """This chain, and as leaves beside its first id what else `tree` expects there."""
        roots = [i for i, parent in enumerate(tree.parents or (-1,)) if parent == -1]
        new = [i for i in roots if i < len(tree.ids) and tree.ids[i] not in self.ids[:1]]
        known = len(tree.probabilities) == len(tree.ids)
        if not self.ids or not new or not known or len(self.probabilities) != len(self.ids):
            return self
        return replace(
            self,
            ids=(*self.ids, *(tree.ids[i] for i in new)),
            sources=(*self.sources, *(tree.sources[i] for i in new)),
            probabilities=(*self.probabilities, *(tree.probabilities[i] for i in new)),
            parents=(*range(-1, len(self.ids) - 1), *[-1] * len(new)),
        )

    def path_to(self, index: int) -> list[int]:
        """Indices from the first id to the one at `index`, that one included; none for -1."""
        if not self.parents:
            return list(range(index + 1))
        path = []
        while index >= 0:
            path.append(index)
            index = self.parents[index]
        return path[::-1]

    def follow(self, chosen: Sequence[int]) -> list[int]:
        """The indices that a target agrees with, from the first on.

        chosen: the target's choice behind the committed text, then behind each id of the proposal
        (more or fewer are allowed: only those on the way are looked at).
        """
        path: list[int] = []
        ids, behind = self.ids, -1
        for index, parent in enumerate(self.behind):
            if parent == behind and ids[index] == chosen[behind + 1]:
                path.append(index)
                behind = index
        return path

    def path_of(self, ids: Sequence[int]) -> list[int]:
        """The indices along which `ids` runs through the proposal, as far as it does."""
        path: list[int] = []
        behind = -1
        for index, parent in enumerate(self.behind):
            if len(path) == len(ids):
                break
            if parent == behind and self.ids[index] == ids[len(path)]:
                path.append(index)
                behind = index
        return path


class Rows(Sequence[Array]):
    """Some rows of an array f[rows, ...], each taken only when it is asked for."""

    __slots__ = ("_array", "_chosen")

    def __init__(self, array: Sequence[Array], chosen: Sequence[int]) -> None:
        self._array, self._chosen = array, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Rows(self._array, self._chosen[at])
        return self._array[self._chosen[at]]


class Verdict(NamedTuple):
    """What the target says: the accepted path through the proposal, then one id of its own.

    path: which of the proposed ids were accepted, their indices; the first ids are these.
    logprobs: for each id f[vocabulary], lazy; None when no model was asked.
    """

    ids: tuple[TargetId, ...]
    path: tuple[int, ...]
    logprobs: Sequence[Array] | None = None
    model_seconds: float = 0.0
