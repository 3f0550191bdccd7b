"""A round of the decode loop: what was proposed and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from tokalign.runtime.proposal import TARGET, Array
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

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

    limit: how many ids the drafter was asked for at most. tree: what it proposed.
    path: indices of the proposed ids that were accepted.
    emitted: the accepted ids, then the target's own; already committed.
    rows: rows that the target computed, steps that fill in a long prompt excluded.
    draft_passes, counts, translation_seconds: as in a `Proposal`.
    seconds: of the whole round, `model_seconds` of it in passes of either model.
    logprobs: for each emitted id f[vocabulary], lazy; None when no model was asked.
    ends: why the generation ends with this round; None if it goes on.
    """

    limit: int
    tree: TokenTree[TargetId]
    path: tuple[int, ...]
    emitted: tuple[TargetId, ...]
    rows: int = 1
    draft_passes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    model_seconds: float = 0.0
    translation_seconds: float = 0.0
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
        """How the emitted token at `index` came about."""
        if index < self.accepted:
            return Outcome.ACCEPTED
        if not self.tree:
            return Outcome.UNDRAFTED
        return Outcome.CORRECTED if self.rejected else Outcome.BONUS


# A stream of events is `Started Round* Finished`. It may end early when its consumer closes it or
# is interrupted, so a fold has to be right after every event.


class Started(NamedTuple):
    """The first round is about to begin."""

    prompt_tokens: int


class Finished(NamedTuple):
    """The generation came to its own end."""

    reason: FinishReason


Event: TypeAlias = Started | Round | Finished
