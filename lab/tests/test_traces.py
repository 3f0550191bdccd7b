"""A file holds a trace, and anything else is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures import DEMO

from lab.recorded_proposals import ProposalTrace, RecordedProposal, TracedText
from lab.traces import command, read_trace
from tokalign.errors import UsageError
from tokalign.tables.token_tree import TokenTree


def test_a_trace_is_read_as_it_was(tmp_path: Path) -> None:
    tree = TokenTree((5, 6, 7), (-1, 0, 0), ("draft", "copy", "draft"), (0.5, 0.25, 0.125))
    one = RecordedProposal.of(tree, [0, 2], passes=2)
    trace = ProposalTrace(texts=(TracedText(given=4, length=9, proposals={"draft": {4: one}}),))
    (tmp_path / "t").write_bytes(pickle.dumps(trace))
    assert read_trace(tmp_path / "t") == trace
    assert trace.tokens == 5
    assert trace.longest == 2  # passes


@pytest.mark.parametrize(
    "broken", [b"", b"{}", pickle.dumps([1]), pickle.dumps(ProposalTrace(texts=()))]
)
def test_what_is_no_trace_is_refused(broken: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(broken)
    with pytest.raises(UsageError, match="no trace with tokens"):
        read_trace(tmp_path / "t")


def test_a_trace_is_recorded_by_the_command(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Wisła płynie do morza, a Odra też płynie do morza.\n", "utf-8")
    given = ["--text", "--target", str(DEMO / "target"), "--method", "hybrid", "-k", "4"]
    given += ["--trace", str(tmp_path / "t.pickle"), str(text)]
    assert CliRunner().invoke(command, given, catch_exceptions=False).exit_code == 0
    assert read_trace(tmp_path / "t.pickle").longest > 0
