"""A trace keeps what was proposed, and answers for positions where nobody was asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.recorded_proposals import (
    WRONG,
    ProposalTrace,
    RecordedProposal,
    TracedText,
)
from lab.traces import from_lines, lines_of, read_trace, write_trace
from tokalign.errors import UsageError
from tokalign.tables.token_tree import TokenTree


def chain(
    count: int, accepted: int, *, source: str = "d", passes: int = 0, likely: Sequence[float] = ()
) -> RecordedProposal:
    tree = TokenTree.chain([WRONG] * count, source, likely)
    return RecordedProposal.of(tree, range(accepted), passes=passes)


@st.composite
def proposals(draw: st.DrawFn) -> RecordedProposal:
    """A tree and some path from a root of it."""
    count = draw(st.integers(0, 6))
    chance = st.floats(0, 1).map(lambda p: round(p, 4))
    tree = TokenTree(
        (WRONG,) * count,
        tuple(draw(st.integers(-1, i - 1)) for i in range(count)),
        tuple(draw(st.sampled_from(["draft", "copy"])) for _ in range(count)),
        tuple(draw(chance) for _ in range(count)) if draw(st.booleans()) else (),
    )
    return RecordedProposal.of(
        tree,
        tree.path_to(draw(st.integers(-1, count - 1))),
        passes=draw(st.integers(0, 8)),
    )


@given(
    st.lists(st.dictionaries(st.integers(5, 40), proposals(), max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_lines_keep_everything(texts: list[dict[int, RecordedProposal]], every: bool) -> None:
    trace = ProposalTrace(
        texts=tuple(
            TracedText(given=5, length=60, proposals={"it": by} if by else {}) for by in texts
        ),
    )
    assert from_lines(lines_of(trace), name="it") == trace


def test_a_file_is_written_whole_and_read_again(tmp_path: Path) -> None:
    text = TracedText(given=4, length=9, proposals={"draft": {4: chain(3, 1, passes=2)}})
    trace = ProposalTrace(texts=(text,))
    write_trace(trace, tmp_path / "t.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
    assert read_trace(tmp_path / "t.jsonl") == trace
    assert trace.tokens == 5
    assert trace.longest == 2  # passes


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{}",
        "[1]",
        '{"format": "tokalign-trace", "version": 9}',
        '{"format": "tokalign-trace", "version": 1}\n{"at": 3}',
        '{"format": "tokalign-trace", "version": 1}\n{"given": 1, "length":'
        ' 4}\n{"at": 1, "by": "a", "sources": "a", "probabilities": [], "offered": 1, "path": [1],'
        ' "passes": 0}',
    ],
)
def test_what_is_no_trace_is_one_line(broken: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(broken)
    with pytest.raises(UsageError) as found:
        read_trace(tmp_path / "t")
    assert "\n" not in str(found.value)


def test_where_no_token_follows_a_prompt_nothing_is_projected(tmp_path: Path) -> None:
    write_trace(ProposalTrace(texts=()), tmp_path / "t")
    with pytest.raises(UsageError, match="no token after a prompt"):
        read_trace(tmp_path / "t")
