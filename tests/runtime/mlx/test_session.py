"""Sessions: whatever contexts they are given, the logits are those of a fresh cache."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache, RotatingKVCache
from random_models import VOCABULARY, random_model
from zoo import zoo_model

from tokalign.errors import CacheError, IncompatibleError
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import common_prefix
from tokalign.tables.alignment import NO_TOKEN, FirstIds

contexts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50)


def fresh(ids: list[int], last: int) -> Any:
    return random_model()(mx.array([ids]))[0, -last:]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(contexts, st.integers(0, 50), st.integers(1, 4)), max_size=5))
def test_a_session_gives_the_logits_of_a_fresh_cache(
    steps: list[tuple[list[int], int, int]],
) -> None:
    """For contexts that share any prefix with the one before, prefilled in steps of seven."""
    session = ModelSession(random_model(), CacheOptions(prefill_step_size=7))
    ids: list[int] = []
    for tail, kept, last in steps:
        ids = ids[:kept] + tail
        last = min(last, len(ids))
        found = session.logits(ids, last)
        assert found.shape[0] == last
        assert mx.allclose(found, fresh(ids, last), atol=1e-4)


def test_ids_fed_while_computing_are_part_of_the_context() -> None:
    session = ModelSession(random_model())
    token = mx.argmax(session.logits([4, 5, 6]), axis=-1)
    row = session.feed(token)
    ids = [4, 5, 6, *session.read(token)]
    assert mx.allclose(row, fresh(ids, 1), atol=1e-4)
    passes = session.passes
    assert mx.allclose(session.logits([*ids, 9]), fresh([*ids, 9], 1), atol=1e-4)
    assert session.passes == passes + 1


def test_drafting_is_greedy_decoding() -> None:
    session, ids = DraftModelSession(random_model()), [4, 5, 6]
    expected = list(ids)
    for _ in range(4):
        expected.append(int(mx.argmax(fresh(expected, 1), axis=-1).item()))
    assert session.draft(ids, 4) == (expected[3:], 0)
    assert session.passes == 4


def test_only_ids_that_the_target_shares_are_drafted() -> None:
    """And those that were likelier are counted. The model is padded beyond its vocabulary."""
    session = DraftModelSession(random_model())
    to_target = np.full(VOCABULARY - 10, NO_TOKEN, dtype=np.int32)
    to_target[[3, 50]] = [0, 1]
    firsts = FirstIds(to_target, np.ones_like(to_target))
    ids, masked_out = session.draft([4, 5, 6], 5, firsts)
    assert set(ids) <= {3, 50}
    history = [4, 5, 6]
    likelier = 0
    for token in ids:
        likelier += int(mx.argmax(fresh(history, 1), axis=-1).item()) != token
        history.append(token)
    assert masked_out == likelier > 0


def test_a_full_context_drafts_nothing() -> None:
    session = DraftModelSession(random_model())
    session.context_length = 100
    full = [1] * session.context_length
    assert session.draft(full[1:], 2) == ([], 0)
    firsts = FirstIds(np.arange(VOCABULARY), np.ones(VOCABULARY))
    assert session.draft(full[1:], 2, firsts, Sampling()) == ([], 0)
    assert session.start_shortlists(full, 0).among([], 3)() == []
    assert session.passes == 0


def test_a_shortlist_is_the_top_of_each_row() -> None:
    """As plain logits say: the ids, their log-probabilities, and that of the id taken back."""
    session, other = DraftModelSession(random_model()), DraftModelSession(random_model())
    ids = [5, 9, 2, 7]
    among = np.array([3, 8, 11, 40], dtype=np.uint32)
    last, back = session.start_shortlists(ids, 1).among([among], 3)()
    rows = np.array(other.logits(ids, last=2)).astype(np.float64)
    logprobs = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    assert sorted(last.ids) == sorted(np.argsort(logprobs[1])[-3:].tolist())
    assert sorted(back.ids) == sorted(among[np.argsort(logprobs[0][among])[-3:]].tolist())
    for found, row in ((last, logprobs[1]), (back, logprobs[0])):
        assert np.allclose(found.logprobs, row[found.ids], atol=1e-4)
    assert back.kept == pytest.approx(logprobs[0][7], abs=1e-4)
    assert last.kept == 0


def test_a_cache_that_cannot_be_quantized_so_is_refused_in_one_line() -> None:
    options = CacheOptions(kv_bits=8, kv_group_size=128, quantized_kv_start=0)
    session = ModelSession(random_model(), options)
    with pytest.raises(CacheError, match="another kv_group_size"):
        session.logits([1, 2, 3])


def test_embeddings_are_read_whatever_is_read_with_them() -> None:
    """Where a cache begins anew, the ids before them are read in the same pass."""
    model, ids, found = random_model(), list(range(1, 13)), []
    for ends in ([4, 9, 12], [6, 12], [12]):
        session = ModelSession(model)
        session.embed(4, model.model.embed_tokens(mx.array(ids[4:9])) + 0.3)
        found.append([session.logits(ids[:end]) for end in ends][-1])
        assert mx.allclose(found[-1], found[0], atol=1e-4)
    assert not mx.allclose(found[0], fresh(ids, 1), atol=1e-2)


def test_settling_leaves_the_cache_at_a_prefix() -> None:
    cache = [KVCache() for _ in random_model().layers]
    session = ModelSession(random_model(), cache=cache)
    mx.eval(session.logits([4, 5, 6, 7]))
    session.settle([4, 5])
    assert [c.offset for c in cache] == [2, 2]
    session.settle([4, 5, 8, 9, 9])
    assert [c.offset for c in cache] == [5, 5]
    assert mx.allclose(session.logits([4, 5, 8, 9, 9, 3]), fresh([4, 5, 8, 9, 9, 3], 1), atol=1e-4)


def test_a_session_goes_on_with_another_cache() -> None:
    """It computes only what the adopted cache lacks, and the logits are those of a fresh one."""
    ids = list(range(40))
    other = ModelSession(random_model())
    other.settle(ids)
    session = ModelSession(random_model())
    session.read(mx.argmax(session.feed(mx.argmax(session.logits([7, 8, 9]), axis=-1)), axis=-1))
    session.adopt(other.layers, ids)
    rows = session.rows
    assert mx.allclose(session.logits([*ids, 5]), fresh([*ids, 5], 1), atol=1e-4)
    assert session.rows == rows + 1


def test_a_session_rewinds_what_forgets() -> None:
    """A window is rewound within its slack; what is forgotten for good is read anew."""
    model = random_model(sliding_window=24)
    session = ModelSession(model)
    for length in (23, 21, 30, 31, 22, 40, 200, 190, 199, 50):
        ids = [1 + i % 90 for i in range(length)]
        alone = np.array(ModelSession(model, rewinds=False).logits(ids))
        np.testing.assert_allclose(np.array(session.logits(ids)), alone, atol=2e-5)
    session.settle(session.held)
    assert {type(c) for c in session.layers} == {RotatingKVCache, KVCache}


def test_plain_decoding_takes_a_token_back_without_reading_the_prompt_again() -> None:
    """An answer that ends at a token is kept without it, with recurrent states too."""
    session: ModelSession[int] = ModelSession(zoo_model("qwen3_next"), rewinds=False)
    prompt, emitted = list(range(40)), list[int]()
    logits = session.logits(prompt)
    for _ in range(3):
        chosen = mx.argmax(logits, axis=-1)
        emitted += session.read(chosen)
        logits = session.feed(chosen)
    forward, rows = session.forward, list[int]()

    def counted(tokens: Any, *rest: Any, **named: Any) -> Any:
        rows.append(tokens.shape[0])
        return forward(tokens, *rest, **named)

    session.forward = counted  # type: ignore[method-assign]
    session.settle([*prompt, *emitted[:-1]])
    assert sum(rows) <= 4
    after = session.logits([*prompt, *emitted[:-1], 5])
    alone = ModelSession(zoo_model("qwen3_next")).logits([*prompt, *emitted[:-1], 5])
    assert mx.allclose(after, alone, atol=1e-4)


def test_a_full_cache_whose_ids_are_not_known_cannot_be_filled_again() -> None:
    model = random_model()
    given = [RotatingKVCache(16, keep=4) for _ in model.layers]
    model(mx.array([[7, 8]]), cache=given)  # a prompt that the session does not know
    session = ModelSession(model, cache=given)
    mx.eval(session.logits(list(range(1, 31))))
    with pytest.raises(CacheError):
        session.logits(list(range(1, 22)))


def test_an_id_that_a_model_lacks_is_not_held() -> None:
    session = ModelSession(random_model())
    mx.eval(session.logits([4, 5, 6]))
    with pytest.raises(IncompatibleError, match=f"the id {VOCABULARY} is none of the model's"):
        session.logits([4, 5, 6, VOCABULARY])
    assert session.held == [4, 5, 6]


@given(contexts, contexts, st.integers(0, 50))
def test_the_common_prefix_is_that_of_a_walk(
    left: list[int], right: list[int], shared: int
) -> None:
    right = left[:shared] + right
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_prefix(left, right) == expected


@pytest.mark.parametrize("differs", [0, 1, 2000, 3950, 3999, 4000])
def test_of_long_texts_each_id_is_compared_about_once(differs: int) -> None:
    compared = 0

    class Compared(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = int.__hash__

    left, right = ([Compared(place) for place in range(4000)] for _ in range(2))
    right[differs:] = [Compared(-1)] * (4000 - differs)
    assert common_prefix(left, right) == differs
    assert compared < (1.1 if differs > 3936 else 2.1) * 4000
