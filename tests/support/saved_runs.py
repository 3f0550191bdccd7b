"""Rounds and runs as a decode loop makes them, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tokalign.cli.page import Run
from tokalign.runtime.rounds import Round
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import Roles, TargetId, Vocabulary

ids = st.integers(0, 40).map(TargetId)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """A round as the loop makes it: the accepted head, then the target's own unless cut off."""
    proposed = draw(st.lists(ids, max_size=5))
    accepted = draw(st.integers(0, len(proposed)))
    own = draw(st.lists(ids, min_size=0 if accepted else 1, max_size=1))
    tree = TokenTree(
        tuple(proposed),
        tuple(range(-1, len(proposed) - 1)),
        tuple(draw(st.sampled_from(["draft", "dictionary"])) for _ in proposed),
        tuple(0.5 for _ in proposed),
    )
    return Round(
        limit=draw(st.integers(0, 9)),
        tree=tree,
        path=tuple(range(accepted)),
        emitted=(*proposed[:accepted], *own),
        rows=1 + len(proposed),
        draft_passes=len(proposed),
        seconds=0.25,
        verification=0.125,
    )


def run_of(log: list[Round], tokens: dict[int, bytes]) -> Run:
    """A run to be shown; ids without bytes are special tokens."""
    seen = {i for one in log for i in one.tree.ids + one.emitted}
    vocabulary = Vocabulary(
        tokens=tuple(tokens.get(i, b"") for i in range(1 + max([*seen, *tokens], default=0))),
        fallback=frozenset(),
        specials={i: f"<{i}>" for i in seen if i not in tokens},
        roles=Roles(),
    )
    how = {"method": "draft", "translation": "exact", "seed": None}
    return Run(log, vocabulary, {**how, **statistics_of(log).summary()})


def statistics_of(log: list[Round]) -> Statistics:
    """The same rounds through the fold that `decode` prints."""
    found = Statistics()
    for one in log:
        found.observe(one)
    return found
