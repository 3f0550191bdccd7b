"""What the runtime's parts ask of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.context import Context
from tokalign.runtime.proposal import Array, Proposal, Verdict
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

T = TypeVar("T")
Waiting: TypeAlias = Callable[[], T]
"""A result that the device is busy with; calling it waits. Until then the host's time is free."""


class Drafter(Protocol):
    """Guesses how the target goes on. It speaks target ids, whatever it drafts with.

    A drafter sees what became of its guess in the context it is given next.
    """

    def propose(self, context: Context, limit: int) -> Proposal:
        """A proposal of at most `limit` ids (0 or more)."""
        ...


class Verifier(Protocol):
    """Says what the target emits."""

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """The accepted head of the proposal and one more id."""
        ...


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The likeliest next ids at one position, unsorted, with their log-probabilities.

    kept: log-probability of the id that stands behind this position (0 at the last one).
    """

    ids: list[int]
    logprobs: list[float]
    kept: float


class Session(Protocol):
    """A language model with its cache. It is given contexts and finds out itself what to rewind."""

    @property
    def context_length(self) -> int:
        """How many ids the model's context holds."""
        ...

    @property
    def passes(self) -> int:
        """Forward passes so far, not counting the steps in which a long prompt is filled in."""
        ...

    @property
    def rows(self) -> int:
        """Rows computed in those passes."""
        ...

    @property
    def barred(self) -> int:
        """Drafted ids so far that a mask put in the place of a likelier one."""
        ...

    @property
    def seconds(self) -> float:
        """Time spent in passes so far: from when they begin until their results are read."""
        ...

    def logits(self, ids: Sequence[int], last: int = 1) -> Array:
        """Logits f[last, vocabulary] of the last `last` positions of `ids`."""
        ...

    @property
    def can_branch(self) -> bool:
        """Whether `tree` is possible with this model and its cache."""
        ...

    def tree(self, ids: Sequence[int], tree: TokenTree) -> Array:
        """Logits f[1 + proposed, vocabulary] behind `ids` and behind each id of a tree."""
        ...

    def feed(self, token: Array) -> Array:
        """Logits f[1, vocabulary] behind one more token i[1], which may still be computing."""
        ...

    def start(self, *arrays: Array) -> None:
        """Begin computing `arrays` without waiting for them."""
        ...

    def read(self, array: Array) -> list[int]:
        """Wait for an array of ids: the one place where host and device meet."""
        ...

    def draft(
        self, ids: Sequence[int], steps: int, mask: Array | None = None
    ) -> Waiting[list[int]]:
        """The likeliest `steps` (at least 1) next ids, one pass each, one wait for all of them.

        None where the context is full. The first pass also brings the cache up to date with `ids`.
        mask: see `mask`.
        """
        ...

    def shortlist(
        self,
        ids: Sequence[int],
        back: int,
        allowed: Callable[[], Sequence[NDArray[np.uint32]]],
        count: int,
    ) -> Waiting[list[Shortlist]]:
        """What may follow `ids`, and `ids` without its last 1, ..., `back` ids; one pass, one wait.

        allowed: the ids that may follow with 1, ..., `back` ids taken back; without any, all may.
        It is called when the pass is under way. No lists where the context is full.
        """
        ...

    def mask(self, allowed: NDArray[np.bool_]) -> Array:
        """f32[vocabulary]: 0 where an id is allowed, -inf where not; ids beyond it are not."""
        ...


class Sampler(Protocol):
    """The target's choice at every position."""

    @property
    def needs_history(self) -> bool:
        """Whether a choice depends on the ids before it other than through the logits."""
        ...

    @property
    def needs_position(self) -> bool:
        """Whether a choice depends on where it stands."""
        ...

    @property
    def drafts(self) -> Guesser | None:
        """How a draft guesses the choice; None where the likeliest id is all it can know."""
        ...

    def choose(
        self,
        logits: Array,
        *,
        position: int,
        ids: Sequence[int] = (),
        distributions: Sequence[Array | None] = (),
    ) -> tuple[Array, Array]:
        """Choices i[rows] and log-probabilities f[rows, vocabulary], both lazy.

        Row i chooses the id at index `position + i`, behind `ids[: position + i]`; `ids` may be
        left out unless `needs_history`. What it holds from `position` on is a proposal, and
        `distributions` are as in `Proposal`.
        """
        ...


class Guesser(Protocol):
    """A draft model's choice, made over target ids: filters and processors are the target's."""

    @property
    def needs_history(self) -> bool:
        """As in `Sampler`."""
        ...

    def guess(
        self, logits: Array, *, position: int, ids: Sequence[int] | Array
    ) -> tuple[Array, Array | None]:
        """An id i[1] for index `position`, and the law f[1, vocabulary] to accept it by; lazy.

        logits: f[1, vocabulary], the draft's own. The law is None where none is needed.
        """
        ...

    def roll(self, position: int, vocabulary: int) -> Array | None:
        """What `guess_among` needs besides probabilities, f[vocabulary], lazy; None for nothing."""
        ...

    def guess_among(
        self,
        logprobs: Mapping[TargetId, float],
        *,
        position: int,
        ids: Sequence[int],
        rolled: Array | None,
    ) -> tuple[list[TargetId], Array | None]:
        """As `guess`, among a few ids whose log-probabilities (up to a constant) the host knows.

        rolled: of `roll`, at the same position. The id that is chosen comes first, behind it what
        would be chosen without it, and so on. Waits for the device only if there are processors.
        """
        ...
