"""Choosing: mlx-lm's filters, randomness keyed by position, the history that processors see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import make_sampler
from numpy.testing import assert_allclose
from random_models import VOCABULARY, WildDrafter, generate, random_model, rounds_of

from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.noise import TARGET, gumbel
from tokalign.runtime.mlx.sampling import Sampling, logprobs_of
from tokalign.runtime.mlx.session import PassRows, TargetModelSession, top_k
from tokalign.runtime.rounds import Context
from tokalign.tokenizer.vocabulary import TargetId


def rows(count: int, seed: int = 0) -> Any:
    mx.random.seed(seed)
    return mx.random.normal((count, VOCABULARY)) * 2


@pytest.mark.parametrize("temperature", [1e-12, 1e-37, 1e-300, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}])
def test_close_to_zero_a_temperature_is_greedy(temperature: float, options: Any) -> None:
    sampling = Sampling(temperature=temperature, seed=3, **options)
    chosen, _ = sampling.choose(rows(5), range(3, 8))
    assert chosen.tolist() == mx.argmax(rows(5), axis=-1).tolist()


@pytest.mark.parametrize("options", [{"temperature": 1e39}, {"temperature": 1e300}])
def test_however_hot_only_what_the_filters_leave_is_drawn(options: Any) -> None:
    logits, positions = rows(200), range(200)
    sampling = Sampling(top_k=3, seed=3, **options)
    left = np.array(sampling.filter(logprobs_of(logits, ()), positions)) > -np.inf
    chosen, _ = sampling.choose(logits, positions)
    assert left[positions, chosen.tolist()].all()
    assert not mx.isnan(sampling.expect(logits, positions)).any()


def test_the_least_top_p_leaves_the_most_probable_id() -> None:
    chosen, _ = Sampling(temperature=1, top_p=1e-50).choose(rows(5), range(5))
    assert chosen.tolist() == mx.argmax(rows(5), axis=-1).tolist()


GREEDY, DRAWN = {"temperature": 0}, {"temperature": 1, "top_p": 0.95}
XTC = {"temperature": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.02}


@pytest.mark.parametrize("options", [GREEDY, DRAWN, XTC])
@pytest.mark.parametrize("positions", [range(10, 15), (10, 11, 12, 11, 13)], ids=["chain", "tree"])
def test_a_choice_depends_on_its_position_not_on_the_rows_of_a_pass(
    options: dict[str, Any], positions: Sequence[int]
) -> None:
    """Siblings choose with the same noise."""
    sampling, logits = Sampling(seed=7, **options), rows(5)
    together, logprobs = sampling.choose(logits, positions)
    for row, position in enumerate(positions):
        alone, _ = sampling.choose(logits[row : row + 1], [position])
        picked = sampling.pick(logprobs[row : row + 1], [position])
        assert alone.item() == picked.item() == together[row].item()


def test_samples_have_the_models_distribution() -> None:
    """One row drawn at 20,000 positions: every frequency within five standard deviations."""
    count, temperature = 20_000, 0.7
    logits = mx.array([1.0, 0.0, 2.0, -1.0])
    drawn, _ = Sampling(temperature=temperature, seed=5).choose(
        mx.broadcast_to(logits, (count, 4)), range(count)
    )
    expected = np.array(mx.softmax(logits / temperature))
    found = np.bincount(np.array(drawn), minlength=4) / count
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / count))


@pytest.mark.parametrize("options", [{"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.1}, {}])
def test_the_filters_are_mlx_lms(options: dict[str, Any]) -> None:
    """Ours allows whatever mlx-lm's sampler draws, and draws nothing that mlx-lm rules out."""
    logits = rows(1)
    logprobs, sampling = logprobs_of(logits, ()), Sampling(temperature=1, seed=1, **options)
    allowed = set(np.flatnonzero(np.array(sampling.filter(logprobs, [0])[0]) > -np.inf))
    theirs = make_sampler(1.0, **options)
    drawn = Counter(int(theirs(logprobs).item()) for _ in range(300))
    assert set(drawn) <= allowed
    ours, _ = sampling.choose(mx.broadcast_to(logits, (300, VOCABULARY)), range(300))
    assert set(ours.tolist()) <= allowed
    if options:
        assert len(allowed) < VOCABULARY


def test_top_k_beyond_the_vocabulary_is_off() -> None:
    assert Sampling(temperature=1, top_k=10_000).filter(rows(1), [0]).shape == (1, VOCABULARY)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_processors_are_told_the_histories_of_plain_decoding(temperature: float) -> None:
    """So they may keep a state: each history is longer by one id, and none has a rejected id."""
    histories: list[list[int]] = []

    def record(ids: mx.array, logits: mx.array) -> mx.array:
        histories.append(ids.tolist())
        return logits

    sampling = Sampling(temperature=temperature, seed=2, processors=(record,))
    plain = generate(NoDrafter(), sampling)
    expected = [[5, 17, 3, *plain[:count]] for count in range(len(plain))]
    assert histories == expected
    for seed in range(4):
        histories.clear()
        assert generate(WildDrafter(plain, seed=seed), sampling) == plain
        assert histories[: len(expected)] == expected


def test_processors_are_told_of_no_id_after_a_stop_id() -> None:
    """mlx-lm, which runs ahead, tells them of the stop id itself."""
    plain, histories = generate(NoDrafter(), Sampling()), list[list[int]]()

    def record(ids: mx.array, logits: mx.array) -> mx.array:
        histories.append(ids.tolist())
        return logits

    end = next(place for place in range(5, 40) if plain[place] not in plain[:place])
    ends = frozenset({TargetId(plain[end])})
    allowed = [[5, 17, 3, *plain[:count]] for count in range(end + 2)]
    for seed in range(8):
        histories.clear()
        session: TargetModelSession = TargetModelSession(random_model())
        limits = Limits(max_tokens=40, stop_ids=ends, target=session)
        drafter, sampling = WildDrafter(plain, seed=seed), Sampling(processors=(record,))
        assert rounds_of(drafter, session, sampling, limits=limits)[0] == plain[: end + 1]
        assert histories == allowed[: len(histories)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_mask_has_the_last_word_where_processors_rule_out_all_that_it_allows(
    temperature: float,
) -> None:
    allowed, mask = [7, 9], np.zeros((1, VOCABULARY), dtype=np.bool_)
    mask[0, allowed] = True

    def ban(_: mx.array, logits: mx.array) -> mx.array:
        logits[:, mx.array(allowed)] = -mx.inf
        return logits

    sampling = Sampling(temperature=temperature, processors=(ban,))
    for seed in range(5):
        logits = rows(1, seed)
        chosen, logprobs = sampling.choose(logits, [seed], ids=[TargetId(3)], mask=mask)
        unbanned = Sampling(temperature=temperature).choose(logits, [seed], mask=mask)[0]
        assert chosen.item() == unbanned.item() in allowed
        assert (np.array(logprobs)[~mask] == -np.inf).all()


def test_plain_decoding_runs_ahead_of_the_host() -> None:
    """Each round's pass is started before the id of the previous round has been read."""
    order: list[str] = []

    class Session:
        def reads(self, ids: Any, tree: Any) -> PassRows[TargetId]:
            return PassRows(ids, 0, ids, 1)

        def run(self, reads: PassRows[TargetId]) -> Any:
            order.append("pass")
            return rows(reads.wanted)

        def feed(self, token: Any) -> Any:
            order.append("pass")
            return rows(1)

        def start(self, *arrays: Any) -> None: ...

        start_ahead = start

        def wait_for_others(self, *arrays: Any) -> float:
            return 0.0

        def read(self, array: Any) -> list[int]:
            order.append("read")
            ids: list[int] = array.tolist()
            return ids

    verifier = TargetVerifier(Session(), Sampling())  # type: ignore[arg-type]
    list(Decoding(Context([TargetId(1)]), NoDrafter(), verifier, limits=Limits(max_tokens=3)))
    assert order == ["pass", "pass", "read", "pass", "read", "read"]


def test_xtc_is_mlx_lms_and_decided_by_the_position() -> None:
    logits = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))

    def allowed(position: int, count: int, probability: float, *exempt: int) -> list[set[int]]:
        """The ids that are left in `count` rows from `position` on."""
        sampling = Sampling(
            temperature=1, xtc_probability=probability, xtc_threshold=0.15, xtc_exempt=exempt
        )
        left = sampling.filter(
            mx.broadcast_to(logits, (count, 4)), range(position, position + count)
        )
        return [set(np.flatnonzero(np.array(row) > -np.inf)) for row in left]

    assert allowed(5, 1, 1.0) == [{2, 3}]  # of the three above the threshold the least likely stays
    assert allowed(5, 1, 1.0, 0) == [{0, 2, 3}]
    assert allowed(5, 3, 1.0, 9) == 3 * [{2, 3}]  # of the target, where a draft has fewer ids
    theirs = make_sampler(1.0, xtc_probability=1.0, xtc_threshold=0.15)
    assert {int(theirs(logits).item()) for _ in range(100)} == {2, 3}
    assert 210 < allowed(0, 900, 0.3).count({2, 3}) < 330  # 270, with a standard deviation of 14
    assert allowed(40, 20, 0.5) == [allowed(40 + row, 1, 0.5)[0] for row in range(20)]


def test_a_seed_may_be_any_integer() -> None:
    logits = rows(1)
    small, large = (Sampling(temperature=1, seed=seed) for seed in (5, (1 << 70) + 5))
    assert large.choose(logits, [3])[0].item() == small.choose(logits, [3])[0].item()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(8, 1500), st.integers(1, 8), st.integers(0, 1000))
def test_the_top_k_are_those_of_a_sort(rows: int, width: int, count: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    ids, values = (np.array(part) for part in top_k(mx.array(logits), count))
    assert ids.shape == values.shape == (rows, count)
    assert_allclose(values, np.take_along_axis(logits, ids, axis=-1))
    assert_allclose(np.sort(values), np.sort(logits)[:, -count:])


def test_it_is_the_noise_of_every_position_however_far_rounds_go() -> None:
    ahead = Sampling(temperature=0.7, seed=5).noise_ahead(40)
    assert ahead is not None
    position, chance = 3, np.random.default_rng(0)
    for step in [*chance.integers(1, 9, 40).tolist(), 30, 1, 2]:
        for depth, row in enumerate(ahead.rows(position)):
            expected = np.exp(np.array(gumbel(5, TARGET, position + depth, (1, 40))[0]))
            assert np.allclose(row, expected, rtol=1e-5)
        position += step
    assert Sampling(temperature=0).noise_ahead(40) is None
