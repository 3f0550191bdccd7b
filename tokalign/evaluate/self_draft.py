"""How well a draft model guesses what its target writes: a trace of a little of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokalign.evaluate.record import record
from tokalign.evaluate.recorded_proposals import ProposalTrace, TracedText
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation


def trace_own_output(
    decoder: Decoder, prompts: Sequence[str], *, tokens: int = 40, limit: int = 8
) -> ProposalTrace:
    """Generate `tokens` ids behind each prompt, then have the draft model guess at each of them.

    decoder: of method `draft`. Cost: tokens x limit passes of the draft model per prompt.
    """
    plain = replace(decoder, draft=None, drafting=replace(decoder.drafting, method="plain"))
    decoder = replace(decoder, drafting=replace(decoder.drafting, num_draft_tokens=limit))
    session, texts = decoder.open_draft(), list[TracedText]()
    for given in prompts:
        generation = Generation(
            plain, plain.prompt(given, use_template=False), max_tokens=tokens + 1
        )
        for _ in generation:
            pass
        prompt = decoder.prompt(given, use_template=False)
        drafter = decoder.translated(prompt, session)
        if drafter is not None:
            texts.append(
                record(
                    generation.context.ids,
                    {"draft": drafter},
                    prompt_tokens=len(prompt.target),
                    limit=limit,
                )
            )
    return ProposalTrace(texts=tuple(texts), every_position=True, notes={"prompts": len(prompts)})


def conditional_acceptance(trace: ProposalTrace, longest: int) -> list[float]:
    """How often the i-th id was right where those before it were, i = 1, ..., `longest`."""
    accepted = [recorded.accepted for recorded in trace.proposals]
    found = []
    for position in range(longest):
        reached = [count for count in accepted if count >= position]
        if not reached:
            break
        found.append(sum(count > position for count in reached) / len(reached))
    return found
