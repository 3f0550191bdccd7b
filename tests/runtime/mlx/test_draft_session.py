"""What a draft model reads of a long text: its beginning and its end."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import VOCABULARY, random_model
from zoo import zoo_model

from tokalign.runtime.mlx.draft_session import DraftModelSession, Shortlist
from tokalign.tables.token_tree import TokenTree

BEGINNING, END, WHOLE = 4, 128, 512
LONG = np.random.default_rng(3).integers(0, VOCABULARY, 3000).tolist()


def session(context_length: int = 4096) -> DraftModelSession:
    made = DraftModelSession(random_model())
    made.context_length = context_length
    return made


def listed(of: DraftModelSession, ids: list[int]) -> Shortlist:
    [found] = of.branch(ids, TokenTree((), (), ()), None, 5)()
    return found


def assert_alike(one: Shortlist, other: Shortlist) -> None:
    assert one.ids == other.ids
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def part(ids: list[int], first: int) -> list[int]:
    """Without the ids that a text of `first` ids leaves out."""
    return [*ids[:BEGINNING], *ids[first - END :]]


def test_a_short_text_is_read_whole() -> None:
    model = session()
    listed(model, LONG[:WHOLE])
    assert model.rows == 1
    assert model.held == LONG[:WHOLE]


def test_of_a_long_text_the_beginning_and_the_end_are_read() -> None:
    model, fresh = session(), session()
    assert_alike(listed(model, LONG), listed(fresh, part(LONG, len(LONG))))
    assert model.held == part(LONG, len(LONG))
    assert model.draft(LONG, 3) == session().draft(part(LONG, len(LONG)), 3)
    lists = (
        m.start_shortlists(ids, 2).among([], 5)()
        for m, ids in ((model, LONG), (fresh, part(LONG, len(LONG))))
    )
    assert_alike(*(found[0] for found in lists))


def test_a_text_that_grows_is_read_on() -> None:
    """As long as the context has room; then its beginning and end are read again."""
    model, text = session(context_length=400), LONG[:1000]
    listed(model, text)
    longest = 0
    for token in LONG[1000:1900]:
        text = [*text, token]
        before = model.held
        found = listed(model, text)
        grown = model.held == [*before, token]
        assert grown or model.held == part(text, len(text))
        longest = max(longest, len(model.held))
        if not grown:
            assert_alike(found, listed(session(), part(text, len(text))))
    assert 300 < longest < 400


def test_a_tree_goes_on_after_the_same_part() -> None:
    model, tree = session(), TokenTree((5, 9), (-1, 0), ("", ""))
    listed(model, LONG)
    [_, *found] = model.branch(LONG, tree, None, 5)()
    wider = TokenTree((5, 9, 7), (-1, 0, 0), ("", "", ""))
    [third] = model.branch(LONG, wider, 2, 5)()
    [_, *expected] = session().branch(part(LONG, len(LONG)), wider, None, 5)()
    for one, other in zip([*found, third], expected, strict=True):
        assert_alike(one, other)


def test_another_text_is_read_whole_if_it_is_short() -> None:
    model, other = session(), LONG[2000:2300]
    listed(model, LONG[:1500])
    assert_alike(listed(model, other), listed(session(), other))
    assert model.held == other


def test_a_draft_model_is_expected_to_read_what_it_reads() -> None:
    model = session()
    assert model.unread(LONG[:WHOLE]) == WHOLE
    assert model.unread(LONG[: WHOLE + 1]) == BEGINNING + END
    listed(model, LONG[:1000])
    assert model.unread(LONG[:1001]) == 1
    assert model.unread(LONG[2000:2300]) == 300  # another text, of which nothing is left out
    whole = session()
    whole.reads_all = True
    assert whole.unread(LONG[: WHOLE + 1]) == WHOLE + 1


def test_what_a_state_cannot_go_back_to_counts_as_unread() -> None:
    """A recurrent state goes back to its mark alone; the whole of a long text would be read."""
    model: DraftModelSession = DraftModelSession(zoo_model("qwen3_next"))
    model.context_length, text = 4096, [token % 60 for token in LONG]
    for end in (500, 900):
        model.draft(text[:end], 1)
        assert model.held == text[:end]
    other = [*text[:300], *text[1000:1400]]
    assert model.unread(other) == BEGINNING + END
    model.draft(other, 1)
    assert model.held == part(other, len(other))


def test_another_text_that_goes_on_alike_for_a_while_is_read_far_enough() -> None:
    """Left out are 868 ids; of another text of 900 the end would be its last 32."""
    model = session()
    listed(model, LONG[:1000])
    other = [*LONG[:890], *LONG[2000:2010]]
    assert_alike(listed(model, other), listed(session(), part(other, len(other))))


def test_a_cache_that_has_to_hold_all_ids_does() -> None:
    model = session()
    model.reads_all = True
    listed(model, LONG)
    assert model.held == LONG


def test_what_is_left_out_is_not_kept_for_another_session() -> None:
    """It would not know which ids these are."""
    model = session()
    listed(model, LONG[:WHOLE])
    assert model.kept == LONG[:WHOLE]
    listed(model, LONG)
    assert model.kept == []


def test_a_session_goes_on_with_a_whole_cache() -> None:
    """Whatever the text before it had left out."""
    model, other = session(), LONG[1000:1300]
    listed(model, LONG[:900])
    whole = session()
    listed(whole, other)
    whole.settle(other)
    model.adopt(whole.layers, other)
    rows = model.rows
    assert_alike(listed(model, [*other, 7]), listed(session(), [*other, 7]))
    assert model.rows == rows + 1


def test_a_first_text_is_cut_where_its_part_fits_and_a_grown_one_where_it_fits_twice() -> None:
    model = session(context_length=250)
    listed(model, LONG[:400])
    assert model.held == part(LONG[:400], 400)
    assert listed(model, LONG[:600]).ids == []
