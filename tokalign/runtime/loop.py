"""The decode loop: propose, verify, commit; and the limits that end it.

It knows two collaborators and one context, and tells the drafter what became of every round. It
never asks for a rollback: sessions compare the committed context with their caches and trim these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import (
    UNBOUNDED,
    Context,
    Drafter,
    Event,
    Finished,
    FinishReason,
    Proposal,
    Reading,
    Round,
    Started,
    Verdict,
    Verifier,
)
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.session import TargetModelSession

MOST_READ_AGAIN = 8
"""A round that reads more ids again proposes nothing; it emits one id, so no pass is lost. With 4
and 12 decoding took longer, if a row costs 5 to 24 % of a pass (`lab/results/cache-rows.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one generation.

    max_tokens: output tokens; None for no bound. context_length: prompt and output together.
    stop_ids: the first of them in the output is emitted and ends it.
    completes_stop: whether an id completes a stop string, which makes it the last one of the
    output; asked once for every id, in order.
    target: the session that verifies. Its cache says how far drafts can be taken back, where it is
    quantized, and how many ids the next pass reads once more.
    drafts_last_id: propose even the last id that may be emitted. That costs a row and saves no
    pass, but mlx-lm does it, and says which tokens were drafted.
    stops: numbers of ids of the prompt after which reading it pauses.
    """

    max_tokens: int | None
    context_length: int = UNBOUNDED
    stop_ids: frozenset[TargetId] = frozenset()
    completes_stop: Callable[[TargetId], bool] | None = None
    target: TargetModelSession | None = None
    drafts_last_id: bool = False
    stops: Collection[int] = ()

    def room(self, context: Context) -> int:
        """How many more ids may be emitted."""
        room = self.context_length - len(context.ids)
        if self.max_tokens is not None:
            room = min(room, self.max_tokens - context.emitted_count)
        return room

    def proposed(self, context: Context) -> int:
        """How many ids in a row may be proposed."""
        # The target adds one id of its own, so the last one need not be proposed.
        most, length = self.room(context) - (not self.drafts_last_id), len(context.ids)
        if (target := self.target) is None:
            return max(0, most)
        most = min(most, target.rewindable - length)
        # One token at a time, no pass begins before quantization does and ends after it.
        if length <= target.quantized_from:
            most = min(most, target.quantized_from - length)
        if most <= 0 or target.read_again(context.ids) > MOST_READ_AGAIN:
            return 0
        return most

    def fitting(self, proposal: Proposal) -> Proposal:
        """The same without ids that the target lacks. Tokenizers, tables and draft models may know
        more ids than the target has rows."""
        if self.target is None:
            return proposal
        tree = proposal.tree.below(self.target.vocabulary_size)
        return proposal if tree is proposal.tree else replace(proposal, tree=tree)

    def cut(self, ids: tuple[TargetId, ...]) -> tuple[tuple[TargetId, ...], FinishReason | None]:
        """The ids of a round up to the one that ends the output, and the reason if one does."""
        for count, token in enumerate(ids, 1):
            completes = self.completes_stop
            if token in self.stop_ids or (completes is not None and completes(token)):
                return ids[:count], "stop"
        return ids, None


class Decoding:
    """One generation after `context`, until a limit is met; `ends` says which then.

    A drafter changes how many rounds this takes, never what is emitted. It may be left after any
    round: everything emitted until then is committed, and nothing is left to clean up.
    A round is to propose, to verify and to commit. Whoever decodes several generations together
    verifies all proposals between the two other steps.
    clock: in seconds. It is read here alone, so no round is charged with what happens between two.
    """

    def __init__(
        self,
        context: Context,
        drafter: Drafter,
        verifier: Verifier,
        *,
        limits: Limits,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.context, self.drafter, self.verifier, self.limits = context, drafter, verifier, limits
        self._clock = clock
        self._room = limits.room(context)
        self.ends: FinishReason | None = None if self._room > 0 else "length"
        self._limit = 0
        self._began = self._drafted = 0.0
        self._learning = 0.0  # time that the drafter took to learn from the round before

    @property
    def is_last(self) -> bool:
        """Whether the coming round is the last one, whatever it gives."""
        return self._room == 1

    def events(self) -> Iterator[Event]:
        """All of it; the events are the only output."""
        yield Started(len(self.context.ids))
        yield from self.reading()
        while self.ends is None:
            yield self.round()
        yield Finished(self.ends)

    def reading(self) -> Iterator[Reading]:
        """Read a long prompt in steps. A caller may leave the rest to the first round."""
        target, ids = self.limits.target, self.context.ids
        if self.ends is not None or target is None:
            return
        began = self._clock()
        for done in target.reading(ids, stops=self.limits.stops):
            yield Reading(done, len(ids), self._clock() - began)
            began = self._clock()

    def round(self) -> Round:
        """Propose, verify, commit."""
        proposal = self.propose()
        return self.commit(proposal, self.verifier.verify(self.context, proposal))

    def propose(self) -> Proposal:
        """What the target is to verify next."""
        self._began = self._clock()
        self._limit = self.limits.proposed(self.context)
        proposal = self.drafter.propose(self.context, self._limit)
        proposal = self.limits.fitting(proposal)
        self._drafted = self._clock()
        return proposal

    def commit(
        self, proposal: Proposal, verdict: Verdict, verification: float | None = None
    ) -> Round:
        """Take what was verified over into the context.

        verification: seconds of the pass; None for all since the proposal was made.
        """
        verified, learning = self._clock(), self._learning
        if verification is None:
            verification = verified - self._drafted - verdict.waited
        ids, self.ends = self.limits.cut(verdict.ids[: self._room])
        self.context.extend(ids)
        self._room -= len(ids)
        if self.ends is None and not self._room:
            self.ends = "length"
        round_ = Round(
            limit=self._limit,
            tree=proposal.tree,
            path=verdict.path[: len(ids)],
            emitted=ids,
            rows=verdict.rows,
            draft_passes=proposal.draft_passes,
            counts=proposal.counts,
            seconds=self._clock() - self._began + learning,
            drafting=self._drafted - self._began + learning - proposal.waited,
            verification=verification,
            logprobs=verdict.logprobs,
            ends=self.ends,
        )
        began = self._clock()
        self.drafter.observe(round_)
        self._learning = self._clock() - began
        return round_


def decode(
    context: Context,
    drafter: Drafter,
    verifier: Verifier,
    *,
    limits: Limits,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Event]:
    """The events of a `Decoding`."""
    return Decoding(context, drafter, verifier, limits=limits, clock=clock).events()
