"""What a round of the decode loop is made of, and who makes it.

A `Drafter` makes a `Proposal` for a `Context`, a `Verifier` answers with a `Verdict`, and the
`Round` goes out as an event. Ids are typed by their tokenizer, so the type checker refuses a draft
id where one of the target is wanted. Nothing here imports mlx; the models are in `runtime/mlx/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import Id, TargetId

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNBOUNDED = 1 << 30
"""A number of ids that no context holds."""

_LATEST = 64  # ids among which the first that differs is looked for first: some were guessed


def common_prefix(left: list[Id], right: list[Id]) -> int:
    """How many leading ids agree. Cost: about 4 µs per 1,000 ids, each of which is compared once or
    twice."""
    low, high = 0, min(len(left), len(right))
    middle = max(high - _LATEST, (high + 1) // 2)
    while low < high:
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


class Context:
    """Prompt and committed output as target ids. It only grows; committed ids never change. Owners
    of caches compare it with what they hold, and trim or extend that."""

    def __init__(self, prompt: Iterable[TargetId]) -> None:
        self._ids = list(prompt)
        self._prompt_length = len(self._ids)

    @property
    def ids(self) -> Sequence[TargetId]:
        """Prompt and output. This is no copy: it grows with the context."""
        return self._ids

    @property
    def prompt(self) -> Sequence[TargetId]:
        return self._ids[: self._prompt_length]

    @property
    def emitted(self) -> Sequence[TargetId]:
        return self._ids[self._prompt_length :]

    @property
    def emitted_count(self) -> int:
        return len(self._ids) - self._prompt_length

    def extend(self, ids: Iterable[TargetId]) -> None:
        self._ids.extend(ids)


Array: TypeAlias = Any
"""An mlx array. Its type is not named here, so that this package can be read without mlx."""

Meanwhile: TypeAlias = "Callable[[Sequence[TargetId]], TokenTree[TargetId]]"
"""What the host does while a drafter's pass after these ids runs, or before it. Returns: what the
free sources expect most after these ids."""


def nothing(ids: Sequence[TargetId]) -> TokenTree[TargetId]:
    """Wait for the pass at once."""
    return EMPTY_TREE


TARGET = "target"
"""The source of a token that no drafter proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A guess at how the target goes on, and what drafting it cost.

    tree: the ids to verify in one pass, one row each; empty where a drafter has no guess.
    draft_passes: passes of a draft model; counts: what translation did (`docs/metrics.md`).
    waited: seconds that drafting waited for passes of other generations.
    run_ahead: nothing will be proposed in the next round either, so its pass may start now.
    bare: drafting rests, so the target's top-k logits are not kept for later drafts.
    """

    tree: TokenTree[TargetId] = EMPTY_TREE
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    waited: float = 0.0
    run_ahead: bool = False
    bare: bool = False


class Verdict(NamedTuple):
    """The target's answer: the accepted path through the proposal, then one id of its own.

    path: indices of the proposed ids that were accepted. rows: that the target computed for it.
    logprobs: for each id f[vocabulary], lazy; None when no model was asked.
    waited: seconds that the device spent on passes of other generations.
    """

    ids: tuple[TargetId, ...]
    path: tuple[int, ...]
    rows: int
    logprobs: Sequence[Array] | None = None
    waited: float = 0.0


FinishReason: TypeAlias = Literal["stop", "length"]


class Outcome(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    """Proposed, and the target chose it too."""
    CORRECTED = "corrected"
    """The target's own, in the place of a proposed token that it rejected."""
    BONUS = "bonus"
    """The target's own, after a proposal that was accepted to its end."""
    UNDRAFTED = "undrafted"
    """The target's own, in a round without a proposal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass of the target: the proposal, the verdict and the time they took.

    limit: how many ids the drafter was asked for at most. emitted: the accepted ids, then the
    target's own. seconds: of the whole round. drafting, verification: without what they waited for
    passes of other generations. ends: why the generation ends with this round, if it does.
    The other fields are as in a `Proposal` and a `Verdict`.
    """

    limit: int
    tree: TokenTree[TargetId]
    path: tuple[int, ...]
    emitted: tuple[TargetId, ...]
    rows: int = 1
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    drafting: float = 0.0
    verification: float = 0.0
    logprobs: Sequence[Array] | None = field(default=None, compare=False, repr=False)
    ends: FinishReason | None = field(default=None, compare=False)

    @property
    def accepted(self) -> int:
        """How many of the emitted ids were proposed; those after them are the target's own."""
        return len(self.path)

    @property
    def sources(self) -> tuple[str, ...]:
        """For each emitted id the drafter that proposed it, or "target"."""
        own = len(self.emitted) - len(self.path)
        return (*[self.tree.sources[i] for i in self.path], *[TARGET] * own)

    @property
    def rejected(self) -> list[int]:
        """Indices of the proposed ids that stood in the place of the target's own id."""
        last = self.path[-1] if self.path else -1
        return [index for index, parent in enumerate(self.tree.parents) if parent == last]

    def outcome(self, index: int) -> Outcome:
        if index < self.accepted:
            return Outcome.ACCEPTED
        if not self.tree:
            return Outcome.UNDRAFTED
        return Outcome.CORRECTED if self.rejected else Outcome.BONUS


# A stream of events is `Started Reading* Round* Finished`. It may end early when its consumer
# closes it or is interrupted, so a fold has to be right after every event.


class Started(NamedTuple):
    """The first round is about to begin."""

    prompt_tokens: int


class Reading(NamedTuple):
    """A step of reading a long prompt is done. done: ids in the cache. seconds: it took."""

    done: int
    total: int
    seconds: float = 0.0


class Finished(NamedTuple):
    """The generation came to its own end."""

    reason: FinishReason


Event: TypeAlias = Started | Reading | Round | Finished


class Drafter(ABC):
    """Guesses how the target goes on. It speaks target ids, whatever it drafts with."""

    @abstractmethod
    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose at most `limit` ids (0 or more)."""

    def observe(self, round_: Round) -> None:  # noqa: B027  # many drafters learn nothing
        """Learn what became of the proposal. Called at the end of every round."""


class Verifier(Protocol):
    """Decides what is emitted."""

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Return the accepted path of the proposal and one more id."""


class RowStore(Protocol):
    """Keeps the target's top-k logits after the rows that it verified, for later drafts. width: how
    many of the most probable ids of every row it is told."""

    @property
    def width(self) -> int: ...

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
