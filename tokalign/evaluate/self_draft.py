"""The self-draft trace: what a draft model proposes for a little text that its target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokalign.evaluate.record import record
from tokalign.evaluate.recorded_proposals import ProposalTrace, TracedText
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation


def self_draft_trace(
    decoder: Decoder, prompts: Sequence[str], *, tokens: int = 40, limit: int = 8
) -> ProposalTrace:
    """Generate `tokens` ids after each prompt, then record what the draft proposes at each of them.

    decoder: one of method `draft`. limit: draft passes at each position.
    Cost: tokens x limit passes of the draft model per prompt.
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
    """Share of proposals right at the i-th id, of those right before it; i = 1, ..., `longest`."""
    accepted = [recorded.accepted for recorded in trace.proposals]
    found = []
    for position in range(longest):
        reached = [count for count in accepted if count >= position]
        if not reached:
            break
        found.append(sum(count > position for count in reached) / len(reached))
    return found
