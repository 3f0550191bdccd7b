"""What the runtime's parts ask of each other, as protocols, and the values they exchange.

Ids are typed by their tokenizer: a session of the draft model takes and gives `DraftId`s, one of
the target `TargetId`s, and the type checker refuses one where the other is wanted.
Nothing here imports mlx. The protocols of sessions and samplers are implemented in `runtime/mlx/`,
drafters in `runtime/draft/`, the verifier in `verify.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.context import Context
from tokalign.runtime.draft.beams import Beams, BeamShape
from tokalign.runtime.proposal import Array, Proposal, Verdict
from tokalign.runtime.rounds import Round
from tokalign.tables.alignment import Intersection
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId

T_co = TypeVar("T_co", covariant=True)


class Drafter(ABC):
    """Guesses how the target goes on. It speaks target ids, whatever it drafts with."""

    @abstractmethod
    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose at most `limit` ids (0 or more)."""

    def observe(self, one: Round) -> None:  # noqa: B027  # many drafters learn nothing
        """Learn what became of the proposal. Called at the end of every round."""


class Verifier(Protocol):
    """Decides what is emitted."""

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Return the accepted path of the proposal and one more id."""
        ...


class RowStore(Protocol):
    """Keeps what the target found likely after the rows that it verified, for later drafts."""

    @property
    def width(self) -> int:
        """How many of the most probable ids of every row it is told."""
        ...

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree[TargetId],
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        """Keep the rows of one pass: that after `ids`, then that after each id of `tree`.

        likely: i[1 + tree, width], the most probable next ids in any order. logprobs: of the same
        shape, of the raw logits at temperature 1.
        """
        ...


# -- sessions --------------------------------------------------------------------------------------


class Pending(Protocol[T_co]):
    """A result that the device is still computing. Until it is read, the host's time is free."""

    def read(self) -> T_co:
        """Wait for the result. Call it exactly once: time counts as the passes' until then."""
        ...


class Session(Protocol[Id]):
    """A language model with its cache, given whole contexts.

    The session compares each context with what its cache holds, and rewinds the cache by itself.
    """

    @property
    def context_length(self) -> int:
        """How many ids the model's context holds."""
        ...

    @property
    def passes(self) -> int:
        """Forward passes so far, not counting the steps that fill in a long prompt."""
        ...

    @property
    def rows(self) -> int:
        """Rows computed in those passes."""
        ...

    @property
    def seconds(self) -> float:
        """Time spent in passes so far, each counted from its start until its result is read."""
        ...

    def logits(self, ids: Sequence[Id], last: int = 1) -> Array:
        """Logits f[last, vocabulary] of the last `last` positions of `ids`, lazy."""
        ...

    def feed(self, token: Array) -> Array:
        """Logits f[1, vocabulary] after one more token i[1], which may still be computing; lazy."""
        ...

    def start(self, *arrays: Array) -> None:
        """Begin computing `arrays` without waiting for them."""
        ...

    def read(self, array: Array) -> list[Id]:
        """Wait for an array of ids."""
        ...


class TargetSession(Session[TargetId], Protocol):
    """A session of the target model, which can also verify trees."""

    @property
    def can_branch(self) -> bool:
        """Whether `tree` is possible with this model and its cache."""
        ...

    def tree(self, ids: Sequence[TargetId], tree: TokenTree[TargetId]) -> Array:
        """Logits f[1 + proposed, vocabulary] after `ids` and after each id of the tree, lazy."""
        ...

    def mask(self, allowed: NDArray[np.bool_]) -> Array:
        """A mask bool[rows, vocabulary] as an array of the device."""
        ...

    def top_k(self, logprobs: Array, count: int, *, normalized: bool = True) -> tuple[Array, Array]:
        """The top `count` ids i[rows, count] and their log-probabilities, lazy, unsorted.

        normalized: whether `logprobs` f[rows, vocabulary] are log-probabilities and not logits.
        """
        ...


class GreedyDraft(NamedTuple):
    """The most probable ids, one per pass.

    masked_out: how many of them took the place of a likelier id that the target lacks.
    """

    ids: list[DraftId]
    masked_out: int = 0


class Shortlist(NamedTuple):
    """The most probable next ids at one position, unsorted, with their log-probabilities.

    kept: log-probability of the id that follows this position in the text; 0 at the last position.
    """

    ids: list[DraftId]
    logprobs: list[float]
    kept: float


class PendingShortlists(Protocol):
    """A pass under way, at whose last positions the most probable next ids will be listed."""

    def among(self, allowed: Sequence[NDArray[np.uint32]], count: int) -> Pending[list[Shortlist]]:
        """Have the top `count` ids of every position listed. Call it exactly once.

        allowed: the ids that may follow with 1, 2, ... of the last ids taken back, one array for
        each; with none taken back every id may follow.
        Returns: the list for none, one, two, ... ids taken back; no list if the context is full.
        """
        ...


class DraftSession(Session[DraftId], Protocol):
    """A session of the draft model, which can also guess ahead.

    Everything that it is asked for begins with a pass that brings its cache up to date with `ids`.
    """

    def draft(
        self, ids: Sequence[DraftId], steps: int, shared: Intersection | None = None
    ) -> Pending[GreedyDraft]:
        """Take the most probable next id `steps` (at least 1) times, with one pass each.

        shared: only ids that stand for a target id may be taken; None allows all of them.
        Nothing is drafted if the context would be full.
        """
        ...

    def draw(
        self,
        ids: Sequence[DraftId],
        steps: int,
        *,
        sampler: DraftSampler,
        after: Sequence[TargetId],
        shared: Intersection | None = None,
    ) -> Pending[list[TargetId]]:
        """Draw `steps` (at least 1) target ids, with one pass each.

        after: the target ids that the drawn ones follow. shared: which target id each draft id
        stands for; None if both models have the same ids.
        Nothing is drawn if the context would be full.
        """
        ...

    def start_shortlists(self, ids: Sequence[DraftId], back: int) -> PendingShortlists:
        """Start one pass for lists of what may follow `ids` without its last 0, ..., `back` ids."""
        ...

    @property
    def can_branch(self) -> bool:
        """Whether `branch` is possible with this model and its cache."""
        ...

    def branch(
        self,
        ids: Sequence[DraftId],
        tree: TokenTree[DraftId],
        computed: int | None,
        count: int,
        shared: Intersection | None = None,
        expect: Callable[[Array], Array] | None = None,
    ) -> Pending[list[Shortlist]]:
        """List the top `count` ids after each id of a tree of draft ids, with one pass.

        computed: how many leading ids of the tree are cached after `ids` already; the others are
        listed. None lists what may follow `ids` too, first of all. shared: as for `draft`; the
        probabilities are those among the ids allowed. The lists are empty if the context is full.
        expect: turns the rows' logits over target ids (`shared` says which) into log-probabilities;
        the ids listed are then the draft's for the most probable target ids.
        """
        ...


class BeamSession(Protocol):
    """A recurrent drafter beside the target's session, from whose latest pass it goes on.

    It answers nothing (None) after ids whose last one no recent pass of the target has chosen, as
    before the first pass of a generation.
    """

    @property
    def passes(self) -> int:
        """Steps of the drafter so far."""
        ...

    @property
    def seconds(self) -> float:
        """Time spent in them so far, each search counted from its start until it is read."""
        ...

    def search(
        self,
        ids: Sequence[TargetId],
        shape: BeamShape,
        *,
        count: int,
        sampler: DraftSampler | None = None,
    ) -> Pending[Beams | None]:
        """Search for what follows `ids`, with one step for each id of a beam.

        count: ids listed after every beam, at least as many as there are beams.
        sampler: predicts the choices of a target that samples (`DraftSampler.expect`); without
        one, probabilities are the drafter's own.
        """
        ...

    def draw(
        self, ids: Sequence[TargetId], steps: int, *, sampler: DraftSampler
    ) -> Pending[list[TargetId] | None]:
        """Draw a chain of `steps` (at least 1) ids that follow `ids`, with one step each."""
        ...


# -- choosing --------------------------------------------------------------------------------------


class Sampler(Protocol):
    """The target's choice at every position."""

    @property
    def needs_history(self) -> bool:
        """Whether a choice depends on the ids before it other than through the logits."""
        ...

    @property
    def needs_order(self) -> bool:
        """Whether choices have to be made in the order of their positions, each position once.

        What chooses may keep a state, as a callable with random numbers of its own does.
        """
        ...

    def draft_sampler(self, vocabulary: int) -> DraftSampler | None:
        """How a draft model predicts the choice; None if it can only take its argmax.

        vocabulary: width of the target's logits. Logits processors are given rows of this width by
        the draft model, too, whatever it knows of the target's ids.
        """
        ...

    def choose(
        self,
        logits: Array,
        *,
        position: int,
        ids: Sequence[TargetId] = (),
        depths: Sequence[int] | None = None,
        mask: Array | None = None,
    ) -> tuple[Array, Array]:
        """Choices i[rows] and log-probabilities f[rows, vocabulary], both lazy.

        Row i chooses the id at index `position + i`, which follows `ids[: position + i]`. `ids` may
        be left out unless `needs_history`. depths: of rows that are no chain, where no history is
        needed; row i then chooses the id at index `position + depths[i]`.
        mask: bool[rows, vocabulary], which ids a grammar allows, whatever processors say.
        """
        ...


class DraftSampler(Protocol):
    """A draft model's choice, made over target ids with the target's filters and processors.

    It uses the target's own noise, so that the target's choice can be predicted.
    """

    @property
    def needs_history(self) -> bool:
        """See `Sampler`."""
        ...

    def expect(self, logits: Array, *, positions: Sequence[int]) -> Array:
        """Log-probabilities f[rows, vocabulary] that the target, with its noise, chooses each id.

        positions: of each row. Only without logits processors.
        """
        ...

    def expect_among(
        self, logprobs: Mapping[TargetId, float], *, noise: Array | None
    ) -> dict[TargetId, float]:
        """As `expect`, among a few ids whose log-probabilities the host knows.

        logprobs, noise: as for `draw_among`. Ids that a filter rules out are missing.
        """
        ...

    def draw(self, logits: Array, *, position: int, ids: Sequence[TargetId] | Array) -> Array:
        """Draw the id i[1] at index `position` from the draft's logits f[1, vocabulary]; lazy."""
        ...

    def noise_at(self, position: int, vocabulary: int) -> Array | None:
        """The noise f[vocabulary] that `draw_among` adds at `position`, lazy; None for none."""
        ...

    def draw_among(
        self,
        logprobs: Mapping[TargetId, float],
        *,
        position: int,
        ids: Sequence[TargetId],
        noise: Array | None,
    ) -> list[TargetId]:
        """Draw as `draw` does, among a few ids whose log-probabilities the host knows.

        logprobs: up to a constant. noise: from `noise_at` for the same position.
        Returns: the drawn id, then the id that would be drawn without it, and so on. Waits for the
        device only if there are logits processors.
        """
        ...
