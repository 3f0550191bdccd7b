"""The page of a run: every token once, in order; totals are the statistics; text is only text."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup import Document, assert_self_contained
from saved_runs import rounds, run_of, statistics_of
from trees import ids

from tokalign.cli.generation import OUTCOMES
from tokalign.cli.page import Run, run_page, shown_tokens
from tokalign.runtime.rounds import Round
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId


def plain_round(*emitted: int) -> Round:
    return Round(limit=1, tree=EMPTY_TREE, path=(), emitted=tuple(map(TargetId, emitted)))


def run_of_bytes(pieces: list[bytes]) -> Run:
    """A run that emits these tokens, one a round."""
    tokens = {i: piece for i, piece in enumerate(pieces) if piece}
    return run_of([plain_round(i) for i in tokens], tokens)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in at} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"])), st.lists(st.integers(0, 60))
)
def test_characters_cut_anywhere_come_out_whole(text: str, at: list[int]) -> None:
    shown = list(shown_tokens(run_of_bytes(cut(text.encode(), at))))
    assert "".join(token.text for token in shown) == text


def test_half_a_character_is_shown_as_bytes_and_whole_where_it_ends() -> None:
    shown = list(shown_tokens(run_of_bytes([b"a\xf0\x9f", b"\x90", b"\x9f!"])))
    assert [(token.text, token.started) for token in shown] == [
        ("a", b"\xf0\x9f"),
        ("", b"\x90"),
        ("🐟!", b""),
    ]


def test_a_special_token_ends_a_character_for_good() -> None:
    run = run_of([plain_round(1, 9, 2)], {1: b"\xc5", 2: b"\xbc"})
    assert [token.text for token in shown_tokens(run)] == ["", "<9>", "\ufffd"]


@pytest.mark.parametrize(
    "data", [b"<script>alert(1)</script>", b'"><b>', b"&amp;", b"\x00\x1b[31m"]
)
def test_text_is_only_text(data: bytes) -> None:
    made = run_page(run_of_bytes([data]))
    assert_self_contained(made)
    document = Document(made)
    assert not [tag for tag, _ in document.elements if tag == "b"]
    assert not set(made) & {"\x00", "\x1b"}
    if b"\x1b" not in data:
        assert data.decode() in document.pieces


tokens = {i: f" t{i}".encode() for i in range(35)}


@settings(max_examples=20)
@given(st.lists(rounds(), max_size=8))
def test_every_token_appears_once_in_order(log: list[Round]) -> None:
    run = run_of(log, tokens)
    page = run_page(run)
    document = Document(page)
    assert_self_contained(page)
    shown = [a for a in document.of_class("t") if "data-note" in a]
    expected = [one.outcome(i) for one in log for i in range(len(one.emitted))]
    assert [(a["class"] or "").split()[1] for a in shown] == [str(o) for o in expected]
    whole = "".join(token.text for token in shown_tokens(run))
    assert whole in document.text.replace("↵", "")
    assert page.startswith("<!DOCTYPE html>")


@settings(max_examples=20)
@given(st.lists(rounds(), min_size=1, max_size=8))
def test_totals_are_the_statistics(log: list[Round]) -> None:
    found, document = statistics_of(log), Document(run_page(run_of(log, tokens)))
    pieces = [piece for piece in document.pieces if piece.strip()]
    assert f"{found.tokens_per_round:.2f}" in pieces
    assert f"{found.draft_acceptance_rate:.1%}" in pieces
    for source, counts in found.per_source.items():
        if source != "target":
            at = pieces.index(source, pieces.index("source"))
            assert pieces[at + 1 : at + 3] == [f"{counts['proposed']:,}", f"{counts['accepted']:,}"]
    outcomes = Counter(token.outcome for token in shown_tokens(run_of(log, tokens)))
    for outcome, count in outcomes.items():
        assert pieces[pieces.index(OUTCOMES[outcome]) + 1].strip() == f"{count:,}"


def test_branches_of_a_tree_are_told_apart() -> None:
    tree = TokenTree(ids(1, 2, 3, 4), (-1, 0, -1, 2), ("draft",) * 4)
    one = Round(limit=4, tree=tree, path=(2,), emitted=ids(3, 5))
    document = Document(run_page(run_of([one], tokens)))
    assert "“ t1” “ t2” | “ t3” “ t4”" in document.pieces
    assert document.of_class("t")[5]["data-note"] == "instead of “ t4” from draft · round 1"


def test_what_was_rejected_is_said_where_it_was_corrected() -> None:
    tree = TokenTree(ids(1, 2), (-1, 0), ("draft", "dictionary"), (0.75, 0.5))
    one = Round(limit=3, tree=tree, path=(0,), emitted=ids(1, 3))
    notes = [a["data-note"] for a in Document(run_page(run_of([one], tokens))).of_class("t")[4:]]
    assert notes == [
        "accepted, from draft (p = 0.75) · round 1",
        "instead of “ t2” from dictionary (p = 0.50) · round 1",
    ]


def test_half_a_character_in_a_strangers_run_does_not_keep_the_page_from_being_written() -> None:
    run = run_of_bytes([b"a"])
    run = run._replace(figures={**run.figures, "method": "half \ud800"})
    assert "half ?" in run_page(run).encode("utf-8").decode()


def test_a_page_names_the_models_and_has_the_prompt_and_a_timeline() -> None:
    drafted = Round(
        limit=2, tree=TokenTree.chain(ids(1, 2), "draft"), path=(0, 1), emitted=ids(1, 2, 3)
    )
    run = run_of([plain_round(1), drafted], tokens)._replace(
        prompt="Say <b>\x1b", models={"target": "a model", "draft": None}
    )
    document = Document(run_page(run))
    assert "a model" in document.text
    assert "Say <b>\\x1b" in document.pieces
    assert "How the text grew" in document.text
    assert "Timeline" not in run_page(run._replace(rounds=[drafted]))
