"""The decode loop: propose, verify, commit.

It knows two collaborators and one context, and tells the drafter what became of every round. It
never asks for a rollback: sessions compare the committed context with their caches and trim these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.limits import Limits
from tokalign.runtime.rounds import Event, Finished, FinishReason, Round, Started


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
        proposal = drafter.propose(context, limit)
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
