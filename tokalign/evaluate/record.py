"""Record what drafters propose at every position of a text, for `tokalign project`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from tokalign.evaluate.recorded_proposals import RecordedProposal, TracedText
from tokalign.runtime.context import Context
from tokalign.runtime.interfaces import Drafter
from tokalign.tokenizer.vocabulary import TargetId

ENOUGH = 64
"""More ids than a drafter ever proposes."""


def record(
    reference: Sequence[TargetId],
    drafters: Mapping[str, Drafter],
    *,
    prompt_tokens: int,
    limit: int = ENOUGH,
) -> TracedText:
    """Ask every drafter at every position of a text after its first `prompt_tokens` ids.

    limit: the most ids to ask for. A trace of long drafts also tells about shorter ones.
    """
    text = TracedText(given=min(prompt_tokens, len(reference)), length=len(reference))
    context = Context(reference[:prompt_tokens])
    for position in range(prompt_tokens, len(reference)):
        room = min(limit, len(reference) - position - 1)  # the target adds one id of its own
        for name, drafter in drafters.items():
            if room:
                found = _ask(drafter, context, room, reference[position:])
                text.proposals.setdefault(name, {})[position] = found
        context.extend(reference[position : position + 1])
    return text


def _ask(
    drafter: Drafter, context: Context, limit: int, following: Sequence[TargetId]
) -> RecordedProposal:
    began = perf_counter()
    proposal = drafter.propose(context, limit)
    seconds = perf_counter() - began
    tree = proposal.tree
    return RecordedProposal.of(
        tree,
        tree.path_of(following[: len(tree)]),
        passes=proposal.draft_passes,
        host=max(0.0, seconds - proposal.model_seconds),
    )
