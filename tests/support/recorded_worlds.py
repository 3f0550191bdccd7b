"""Texts in which proposals are right by chance, and costs to decode them under."""

from __future__ import annotations

from random import Random

from lab.recorded_proposals import WRONG, ProposalTrace, RecordedProposal, TracedText
from lab.round_costs import RoundCosts
from tokalign.runtime.cost import read_curve
from tokalign.tables.token_tree import TokenTree

LONGEST = 8


def a_world(
    seed: int,
    right: float,
    *,
    model: bool,
    said: float | None = None,
    offered: float = 1.0,
    tokens: int = 1800,
    length: int = 300,
) -> ProposalTrace:
    """Texts in which every proposed id is right with one probability if those before it are.

    said: the probability that the source states. offered: the share of positions with a proposal.
    length: tokens of each text.
    """
    chance, texts = Random(seed), []
    for _ in range(tokens // length):
        text = TracedText(given=10, length=10 + length)
        for at in range(10, 9 + length):
            room = min(LONGEST, 9 + length - at)
            accepted = 0
            while accepted < room and chance.random() < right:
                accepted += 1
            if chance.random() < offered:
                likely = () if said is None else (said,) * room
                text.proposals.setdefault("it", {})[at] = RecordedProposal.of(
                    TokenTree.chain([WRONG] * room, "it", likely),
                    range(accepted),
                    passes=LONGEST if model else 0,
                )
        texts.append(text)
    return ProposalTrace(texts=tuple(texts))


def costs_of(name: str, *, draft_pass: float = 0.08, host: float = 0.01) -> RoundCosts:
    rows = read_curve(name).row_times
    return RoundCosts(rows=tuple(t / rows[0] for t in rows), draft_pass=draft_pass, host=host)
