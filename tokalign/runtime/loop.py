"""The decode loop: propose, verify, commit; and the limits that end it.

It knows two collaborators and one context, and tells the drafter what became of every round. It
never asks for a rollback: sessions compare the committed context with their caches and trim these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from tokalign.runtime.rounds import (
    UNBOUNDED,
    Context,
    Drafter,
    Event,
    Finished,
    FinishReason,
    Proposal,
    Round,
    Started,
    Verifier,
)
from tokalign.runtime.text import TextStream
from tokalign.tokenizer.vocabulary import TargetId

MOST_READ_AGAIN = 8
"""A round that reads more ids again proposes nothing. It emits one id, so that no more passes are
needed than if these ids were read in a pass of their own. With 4 and 12 decoding took longer, if a
row costs 5 to 24 % of a pass (`lab/results/cache-rows.md`)."""


def _none(_: Sequence[TargetId]) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one generation.

    max_tokens: output tokens; None for no bound. context_length: prompt and output together.
    stop_ids: the first of them in the output is emitted and ends it.
    drafted_length: nothing is proposed beyond so many ids of the context.
    quantized_from: the position from which rows see a quantized cache. No pass begins before it and
    ends after it, because one token at a time none would.
    read_again: how many ids that the target has read already its next pass reads once more, given
    the context (recurrent states cannot be rewound to every position). If they are many, nothing
    is proposed: then nothing is rejected either, and the round after begins with none.
    most_rows: nothing is proposed that would make a pass have more rows. unread: how many rows it
    has without a proposal, given the context.
    drafts_last_id: propose even the last id that may be emitted. That costs a row and saves no
    pass, but mlx-lm does it, and says which tokens were drafted.
    text: finds stop strings in the output; the token that completes one is the last to be emitted.
    """

    max_tokens: int | None
    context_length: int = UNBOUNDED
    stop_ids: frozenset[TargetId] = field(default_factory=frozenset)
    drafted_length: int = UNBOUNDED
    quantized_from: int = -1
    read_again: Callable[[Sequence[TargetId]], int] = _none
    most_rows: int = UNBOUNDED
    unread: Callable[[Sequence[TargetId]], int] = _none
    drafts_last_id: bool = False
    text: TextStream | None = None

    def room(self, context: Context) -> int:
        """How many more ids may be emitted."""
        room = self.context_length - len(context.ids)
        if self.max_tokens is not None:
            room = min(room, self.max_tokens - context.emitted_count)
        return room

    def proposed(self, context: Context) -> int:
        """How many ids in a row may be proposed."""
        # The target adds one id of its own, so the last one need not be proposed.
        most = self.room(context) - (not self.drafts_last_id)
        most = min(most, self.drafted_length - len(context.ids))
        if len(context.ids) <= self.quantized_from:
            most = min(most, self.quantized_from - len(context.ids))
        if most > 0 and self.read_again(context.ids) > MOST_READ_AGAIN:
            return 0
        if most > 0 and self.most_rows < UNBOUNDED and (left := self._rows_left(context)):
            most = min(
                most, left
            )  # not where the prompt is read: drafters learn of the length here
        return max(0, most)

    def fitting(self, proposal: Proposal, context: Context) -> Proposal:
        """The same with as many ids as there are rows for: a tree may have more than in a row."""
        if self.most_rows == UNBOUNDED or len(proposal.tree) <= (left := self._rows_left(context)):
            return proposal
        return replace(proposal, tree=proposal.tree.head(left))

    def _rows_left(self, context: Context) -> int:
        return max(0, self.most_rows - self.unread(context.ids))

    def cut(self, ids: tuple[TargetId, ...]) -> tuple[tuple[TargetId, ...], FinishReason | None]:
        """The ids of a round up to the one that ends the output, and the reason if one does."""
        if self.text is None and not self.stop_ids:
            return ids, None
        for count, token in enumerate(ids, 1):
            if token in self.stop_ids or self._completes_stop_string(token):
                return ids[:count], "stop"
        return ids, None

    def _completes_stop_string(self, token: TargetId) -> bool:
        if self.text is None:
            return False
        self.text.push(token)
        return self.text.stopped


def decode(
    context: Context,
    drafter: Drafter,
    verifier: Verifier,
    *,
    limits: Limits,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Event]:
    """Generate after `context` until a limit is met; the events are the only output.

    A drafter changes how many rounds this takes, never what is emitted. The consumer may stop at
    any event: everything emitted until then is committed, and nothing is left to clean up.
    """
    yield Started(len(context.ids))
    room = limits.room(context)
    ends: FinishReason | None = None if room > 0 else "length"
    learning = 0.0  # time that the drafter took to learn from the round before
    while ends is None:
        began = clock()
        limit = limits.proposed(context)
        proposal = limits.fitting(drafter.propose(context, limit), context)
        verdict = verifier.verify(context, proposal)
        ids, ends = limits.cut(verdict.ids[:room])
        context.extend(ids)
        room -= len(ids)
        if ends is None and not room:
            ends = "length"
        one = Round(
            limit=limit,
            tree=proposal.tree,
            path=verdict.path[: len(ids)],
            emitted=ids,
            rows=verdict.rows,
            draft_passes=proposal.draft_passes,
            counts=proposal.counts,
            seconds=clock() - began + learning,
            model_seconds=proposal.model_seconds + verdict.model_seconds,
            translation_seconds=proposal.translation_seconds,
            logprobs=verdict.logprobs,
            ends=ends,
        )
        began = clock()
        drafter.observe(one)
        learning = clock() - began
        yield one
    yield Finished(ends)
