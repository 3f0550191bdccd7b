"""Looking for the most probable next target token: an early answer is nearly that of looking at
all."""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.alignment import align
from tokalign.runtime.mlx.draft_session import Shortlist
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.runtime.translation.covers import CandidateCovers, CoverTranslator
from tokalign.runtime.translation.growth import Node
from tokalign.tables.opening import open_alignment
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

LEAST = 0.01

probabilities = st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=8)


@st.composite
def shortlists(draw: st.DrawFn) -> list[Shortlist]:
    """Lists as from a model: the probabilities at each position add up to 1 or less."""
    lists = []
    for back in range(draw(st.integers(1, 4))):
        weights = draw(probabilities)
        total = sum(weights) * draw(st.floats(1.0, 3.0))
        kept = log(draw(st.floats(0.01, 0.9))) if back else 0.0
        ids = draw(st.lists(st.integers(0, 50), min_size=len(weights), max_size=len(weights)))
        lists.append(Shortlist(ids, [log(w / total) for w in weights], kept))
    return lists


class Translator:
    """Several draft tokens give one target token; some are doubtful, absorbed, or give none."""

    absorbs, size = staticmethod(b"absorbed".__eq__), UNBOUNDED

    def translate(self, taken_back: int, token: int) -> tuple[bytes, tuple[TargetId, ...] | None]:
        kind = token % 7
        data = b"absorbed" if kind == 5 and token % 2 else b"x"
        return data, None if kind == 5 else () if kind == 6 else (TargetId(kind),)


def covers_of(lists: list[Shortlist]) -> CandidateCovers:
    return CandidateCovers(lists, [b""] * len(lists), LEAST, Translator())  # type: ignore[arg-type]


@given(shortlists())
def test_looking_twice_finds_what_looking_once_does(lists: list[Shortlist]) -> None:
    early, late = covers_of(lists), covers_of(lists)
    early.look(2)
    assert len(early.translated) <= 2
    late.look()
    early.look()
    assert early.mass == pytest.approx(late.mass)
    assert early.translated == late.translated
    assert early.doubtful == late.doubtful


@given(shortlists())
def test_mass_is_the_sum_over_the_covers_that_are_likely_enough(lists: list[Shortlist]) -> None:
    found = covers_of(lists)
    found.look()
    taken_back = [sum(at.kept for at in lists[: back + 1]) for back in range(len(lists))]
    expected: dict[int, float] = {}
    for back, at in enumerate(lists):
        for token, logprob in zip(at.ids, at.logprobs, strict=True):
            probability = exp(taken_back[-1] - taken_back[back] + logprob)
            if token % 7 < 5 and probability >= LEAST * found.possible:
                expected[token % 7] = expected.get(token % 7, 0.0) + probability
    if expected:
        assert found.mass == pytest.approx(expected)
    else:  # then a less likely one is enough
        assert len(found.mass) <= 1


@given(shortlists())
def test_what_is_absorbed_is_not_among_what_may_follow(lists: list[Shortlist]) -> None:
    found = covers_of(lists)
    possible = found.possible
    found.look()
    assert all(node.data == b"x" for node in found.doubtful)
    looked_at = [token for at in lists for token in at.ids if token % 7 == 5 and token % 2]
    assert found.masked <= len(looked_at)
    assert found.possible <= possible
    assert (found.possible < possible) == (found.masked > 0)


@pytest.mark.parametrize("logprob", [-40.0, -600.0, -741.0, -inf])
def test_a_draft_that_is_sure_of_what_is_absorbed_leaves_what_else_is_possible(
    logprob: float,
) -> None:
    found = covers_of([Shortlist([DraftId(5), DraftId(1)], [0.0, logprob], 0.0)])
    found.look()
    assert found.masked == 1
    known = exp(logprob) if logprob > -700 else 0.0
    assert found.possible == sum(found.mass.values()) == known
    assert len(found.translated) == bool(known)


@given(shortlists())
def test_the_most_probable_cover_of_a_token_is_the_one_taken(lists: list[Shortlist]) -> None:
    found = covers_of(lists)
    found.look()
    for token in found.mass:
        logprobs = [node.logprob for node in found.translated if node.ids and node.ids[0] == token]
        assert found.best_with(token).logprob == max(logprobs)


def test_nothing_is_expected_where_the_context_is_full() -> None:
    found = covers_of([])
    found.look()
    assert not found.mass
    assert not found.translated


def test_the_worked_example(bielik: Tokenizer[Any], llama: Tokenizer[Any]) -> None:
    """The table at `CandidateCovers`."""
    alignment = open_alignment(bielik, llama, otherwise=align)
    boundary = Boundary(bielik, alignment.merge_sites)
    committed = bielik.encode("Dziękuję b")
    boundary.follow(committed)
    assert bielik.vocabulary.tokens[committed[-1]] == b" b"
    assert llama.vocabulary.tokens[llama.encode("Dziękuję b")[-1]] == b" b"
    translator = CoverTranslator(Pair(bielik, llama), boundary)
    own, ours = llama.vocabulary.id_of, bielik.vocabulary.id_of
    kept = log(0.5)  # the probability of ` b` after the text before it
    with_b = [own[b" bardzo"], own[b" bar"], own[b" by"]]
    lists = [
        Shortlist([own[b"ard"]], [log(0.6)], 0.0),
        Shortlist(with_b, [log(0.2), log(0.1), log(0.05)], kept),
    ]
    covers = CandidateCovers(lists, [b"", b" b"], LEAST, translator)
    covers.look()
    ard, zo = ours[b"ard"], ours[b"zo"]
    assert [node.ids for node in covers.translated] == [(ard,), (ard, zo)]
    assert covers.mass == pytest.approx({ard: 0.5 * 0.6 + 0.2})
    assert covers.possible == pytest.approx(0.5 + 0.2 + 0.1)
    assert covers.masked == 1
    best = Node(log(0.5) + log(0.6), -1, 0, own[b"ard"], b"ard", (ard,))
    assert covers.best_with(ard) == best
    assert [cover.data for cover in covers.doubtful] == [b"ar"]
