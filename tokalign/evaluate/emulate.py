"""Decode with a method that needs no model; texts play the target (DictSpec's emulator)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tokalign.evaluate.record import record
from tokalign.evaluate.recorded_proposals import ProposalTrace
from tokalign.evaluate.replay import replay
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.statistics import Statistics
from tokalign.tokenizer.vocabulary import TargetId


def emulate(
    drafting: Drafting,
    texts: Iterable[Sequence[TargetId]],
    *,
    prompt_tokens: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Statistics:
    """Statistics of all texts together. Each text is a request of its own.

    prompt_tokens: how many ids of each text are its prompt. progress: called with 1 for each text.
    """
    statistics = Statistics()
    for ids in texts:
        drafter = make_drafter(drafting, None)
        for event in replay(ids, drafter, prompt_tokens=prompt_tokens):
            statistics.observe(event)
        progress(1)
    return statistics


def trace_of(
    drafting: Drafting, texts: Iterable[Sequence[TargetId]], *, prompt_tokens: int = 0
) -> ProposalTrace:
    """What the method proposes at every position of the texts, for `tokalign project`."""
    recorded = [
        record(ids, {drafting.method: make_drafter(drafting, None)}, prompt_tokens=prompt_tokens)
        for ids in texts
    ]
    notes = {"method": drafting.method, "texts": len(recorded)}
    return ProposalTrace(texts=tuple(recorded), every_position=True, notes=notes)


def figures(statistics: Statistics) -> dict[str, float]:
    """What `tokalign emulate` shows, by the names of `docs/metrics.md`."""
    return {
        "speedup": statistics.tokens_per_round,
        "coverage": statistics.coverage,
        "mean_accepted_length": statistics.mean_accepted_length,
        "draft_acceptance_rate": statistics.draft_acceptance_rate,
        "rows_per_step": statistics.rows_per_round,
        "tokens": statistics.generation_tokens,
        "steps": statistics.rounds,
        "host_ms_per_step": statistics.host_ms_per_round["p50"],
    }
