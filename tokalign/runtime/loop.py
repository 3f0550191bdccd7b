"""The decode loop: propose, verify, commit.

It knows two collaborators and one context. Nobody is told to roll back: the drafter and the
verifier see the committed context in every round and compare it with what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from tokalign.runtime.context import Context
from tokalign.runtime.events import Emitted, Event, Finished, Proposed, Started
from tokalign.runtime.interfaces import Drafter, Verifier
from tokalign.runtime.limits import Limits
from tokalign.runtime.proposal import TARGET


def decode(
    context: Context,
    drafter: Drafter,
    verifier: Verifier,
    *,
    limits: Limits,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Event]:
    """Generate behind `context` until a limit is met; the events are the only output.

    A drafter changes how many rounds this takes, never what is emitted. The consumer may stop at
    any event: everything emitted until then is committed, and nothing is left to clean up.
    """
    yield Started(len(context.ids))
    reason = None
    while reason is None and (room := limits.room(context)) > 0:
        began = clock()
        limit = room - 1  # the target adds one id of its own
        proposal = drafter.propose(context, limit)
        yield Proposed(proposal, limit, clock() - began)
        began = clock()
        verdict = verifier.verify(context, proposal)
        ids, reason = limits.cut(verdict.ids)
        context.extend(ids)
        path = verdict.path[: len(ids)]
        yield Emitted(
            ids=ids,
            sources=(*[proposal.sources[i] for i in path], *[TARGET] * (len(ids) - len(path))),
            accepted=len(path),
            seconds=clock() - began,
            model_seconds=verdict.model_seconds,
            logprobs=verdict.logprobs,
        )
    yield Finished(reason or "length")
