"""No document can keep `learn` waiting, or end it: it is left out, and the next one is read."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from documents import MEETING, read_as_told

from tokalign.build.document_reader import DocumentReader
from tokalign.errors import CorpusError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "limit", "why"),
    [
        ("endless", 0.01, "reading it takes more than 0.01 seconds; the document is left out"),
        ("crash", 300, "its reader crashed; the document is left out"),
        ("broken", 300, "it is broken"),
    ],
)
def test_a_document_that_is_never_read_is_named_and_the_next_one_read(
    name: str, limit: float, why: str
) -> None:
    with DocumentReader(limit, read_as_told) as read:
        with pytest.raises(CorpusError) as refused:
            read(Path("here", name))
        assert str(refused.value) == f"here/{name}: {why}"
        read.limit = 300
        assert read(Path("next")) == "next"
        assert len(multiprocessing.active_children()) == 1
    assert multiprocessing.active_children() == []


def test_documents_are_read_by_one_process_that_starts_with_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(MEETING)
    with DocumentReader() as read:
        assert multiprocessing.active_children() == []
        assert read(tmp_path / "a.txt") == MEETING
        [process] = multiprocessing.active_children()
        assert read(tmp_path / "a.txt") == MEETING
        assert multiprocessing.active_children() == [process]
