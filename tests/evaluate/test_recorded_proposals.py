"""A trace keeps what was offered, and answers for what was not asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.errors import UsageError
from tokalign.evaluate.recorded_proposals import (
    Offer,
    OfferTrace,
    TracedText,
    read_trace,
    trace_of_run,
    write_trace,
)
from tokalign.runtime.rounds import Round, SavedRun


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    sources = tuple(draw(st.lists(st.sampled_from(["draft", "copy"]), max_size=6)))
    accepted = draw(st.integers(0, len(sources)))
    count = len(sources)
    known = draw(st.booleans())
    return Offer(
        sources=sources,
        path=tuple(range(accepted)),
        parents=tuple(draw(st.integers(-1, i - 1)) for i in range(count))
        if draw(st.booleans())
        else (),
        probabilities=tuple(draw(st.floats(0, 1).map(lambda p: round(p, 4))) for _ in sources)
        if known
        else (),
        passes=draw(st.integers(0, 8)),
        host=draw(st.sampled_from([0.0, 0.000125])),
    )


@given(
    st.lists(st.dictionaries(st.integers(5, 40), offers(), max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_lines_keep_everything(texts: list[dict[int, Offer]], every: bool) -> None:
    trace = OfferTrace(
        texts=tuple(
            TracedText(given=5, length=60, offers={"it": by} if by else {}) for by in texts
        ),
        every_position=every,
        notes={"translation": "exact"},
    )
    assert OfferTrace.from_lines(trace.lines(), name="it") == trace


def test_a_file_is_written_whole_and_read_again(tmp_path: Path) -> None:
    offer = Offer(sources=("draft",) * 3, path=(0,), passes=2)
    text = TracedText(given=4, length=9, offers={"draft": {4: offer}})
    trace = OfferTrace(texts=(text,), every_position=True)
    write_trace(trace, tmp_path / "t.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
    assert read_trace(tmp_path / "t.jsonl") == trace
    assert trace.tokens == 5
    assert trace.longest == 3


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{}",
        "[1]",
        '{"format": "tokalign-trace", "version": 9}',
        '{"format": "tokalign-trace", "version": 1, "every_position": true}\n{"at": 3}',
        '{"format": "tokalign-trace", "version": 1, "every_position": true}\n{"given": 1, "length":'
        ' 4}\n{"at": 1, "by": "a", "sources": "a", "probabilities": [], "offered": 1, "path": [1],'
        ' "passes": 0, "host": 0}',
    ],
)
def test_what_is_no_trace_is_one_line(broken: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(broken)
    with pytest.raises(UsageError) as found:
        read_trace(tmp_path / "t")
    assert "\n" not in str(found.value)


def test_between_rounds_the_rest_of_the_last_offer_stands() -> None:
    offer = Offer(sources=("a", "b", "c"), path=(0, 1), probabilities=(0.9, 0.8, 0.7))
    text = TracedText(given=2, length=20, offers={"it": {4: offer}})
    assert text.offer("it", 3) is None
    assert text.offer("it", 4) == offer
    rest = text.offer("it", 5)
    assert rest == Offer(sources=("b", "c"), path=(0,), probabilities=(0.8, 0.7))
    assert text.offer("it", 7) is None  # the third id was wrong


def test_fewer_passes_bring_fewer_ids() -> None:
    offer = Offer(sources=("d",) * 9, path=tuple(range(5)), passes=8)
    assert offer.head(8) is offer
    assert offer.head(4) == Offer(sources=("d",) * 4, path=(0, 1, 2, 3), passes=4)
    assert offer.head(1).accepted == 1


def test_what_stands_beside_the_chain_stays_with_its_parent() -> None:
    """A chain of three, and what else might come first."""
    tree = Offer(sources=("d",) * 4, parents=(-1, 0, 1, -1), path=(3,), passes=3)
    short = tree.head(1)
    assert short.parents == (-1, -1)
    assert short.path == (1,)
    assert tree.first(2).path == ()


def test_a_run_is_a_trace_of_where_its_rounds_began() -> None:
    def one(proposed: int, accepted: int) -> Round:
        ids = tuple(range(proposed))
        return Round(
            limit=9,
            proposed=ids,
            sources=("draft",) * proposed,
            accepted=accepted,
            emitted=(*ids[:accepted], 99),
            draft_passes=2,
        )

    run = SavedRun(
        rounds=(one(2, 2), one(0, 0), one(3, 1)),
        token_bytes={},
        special_tokens={},
        figures={"prompt_tokens": 7, "method": "draft"},
    )
    trace = trace_of_run(run)
    assert not trace.every_position
    text = trace.texts[0]
    assert (text.given, text.length) == (7, 7 + 3 + 1 + 2)
    assert sorted(text.offers["draft"]) == [7, 10, 11]
    assert text.offers["draft"][11].accepted == 1
