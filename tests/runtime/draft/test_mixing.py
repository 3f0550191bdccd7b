"""Mixing equals its definition; what is learned comes true and follows a change."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, prod
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokalign.runtime.draft.mixing import HEARD, MOST, Mixer
from tokalign.runtime.draft.neural import Acceptance
from tokalign.runtime.draft.trust import _TRUST_RATE, LEAST, Candidate, Mixing, Reliance, Trust
from tokalign.runtime.draft.weights import (
    ALONE,
    MODELS,
    TRAINED,
    USELESS,
    WEIGHTS,
    ranked_priors_of,
    weights_of,
)
from tokalign.tokenizer.vocabulary import TargetId

SOURCES = ("dictionary:pl", "draft", "copy", "block", "logits:2", "somebody")
log_odds = st.integers(-7000, 6000).map(lambda n: (n + 0.5) / 997)  # no sum of which is whole
answers = st.lists(st.tuples(st.integers(0, 4), log_odds), max_size=4, unique_by=lambda one: one[0])
said = st.none() | answers.map(lambda found: sorted(found, key=lambda one: -one[1]))


def odds_of(probability: float) -> float:
    """Its log-odds; certainty bounds nothing beyond an even chance."""
    return log(probability / (1 - probability)) if probability < 1 else 0.0


class Defined:
    """`Mixer` by its definition: id by id, source by source, with sets in the place of bits."""

    def __init__(self, names: Sequence[str], recent: frozenset[int]) -> None:
        self.recent = recent
        self.weights = {n: weights_of(n) if len(names) > 1 else ALONE for n in names}
        self.trust, self.reliance = Trust(rate=_TRUST_RATE), Reliance()
        self.slopes, self.firsts = dict[int, float](), dict[str, float]()
        for name in names if len(names) > 1 else ():
            shifts = enumerate(ranked_priors_of(name))
            self.trust.restore([((name, rank), exp(shift), 3.0) for rank, shift in shifts])

    def candidates(
        self, states: Sequence[Any], least: float, stated: float, noise: list[float] | None
    ) -> dict[int, tuple[float, str, Any]]:
        """For each id its probability before the noise, who is surest of it, and its situations."""
        asked = {name: dict(x) for name, x in zip(self.weights, states, strict=True) if x}
        models = asked.keys() & set(MODELS)
        spoken = dict(zip(self.weights, states, strict=True))
        heard = {
            name: {t: asked[name][t] for t, x in spoken[name] if x >= odds_of(stated)}
            for name in asked
        }
        self.firsts = {name: x[0][1] for name, x in spoken.items() if x}
        found: dict[int, tuple[float, str, Any]] = {}
        for token in {token for expected in heard.values() for token in expected}:
            naming = [name for name in heard if token in heard[name]]
            surest = max(naming, key=lambda name, token=token: heard[name][token])
            total = heard[surest][token]
            self.slopes[token] = 0.0
            if models != asked.keys():
                useless, full = (self.total(heard, token, relied) for relied in (0, 1))
                self.slopes[token] = full - useless
                total = useless + self.reliance.value * (full - useless)
            if noise is not None and models and set(naming) - models:
                total += HEARD * log(noise[token])
            hidden = 2.0 if noise is not None and not models else 0.0
            if total >= odds_of(least) - hidden:
                voters, level = frozenset(naming), max(-5, min(4, int(total)))
                rank = [t for t, _ in spoken[surest]].index(token)
                keys = (voters, frozenset(asked), level), (surest, min(rank, 3))
                factor = prod(self.trust.of[key].factor for key in keys)
                found[token] = factor / (factor + exp(-total)), surest, keys
        return found

    def total(self, heard: dict[str, dict[int, float]], token: int, relied: int) -> float:
        """The log-odds of an id at a reliance of 0 or 1."""
        naming = [name for name in heard if token in heard[name]]
        total = 0.0
        for name, expected in heard.items():
            trained = name in TRAINED and len(self.weights) > 1
            weights = self.weights[name]
            if trained:
                weights = weights if relied else USELESS
            if token not in expected:
                total += weights.silent + weights.doubt * self.firsts[name]
            else:
                total += weights.odds * expected[token] + weights.named
                trusted = token in self.recent and name not in MODELS
                total += weights.alone if naming == [name] and not trusted else 0.0
        return total

    def learn(self, found: Sequence[Candidate], expected: Any, emitted: int) -> None:
        if any(name in TRAINED for name in self.weights) and len(self.weights) > 1:
            slopes = [(*one[:5], self.slopes[one[0]]) for one in found]
            self.reliance.learn(slopes, TargetId(emitted))
        for token, probability, *_ in found:
            for key in expected[token][2]:
                self.trust.learn([(probability, self.trust.of[key], token == emitted)])


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.sampled_from(SOURCES), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.lists(said, min_size=4, max_size=4), st.integers(0, 4)), max_size=4),
    st.sampled_from([0.001, 0.06, 0.31, 1.0]),
    st.sampled_from([0.001, 0.06, 0.31, 1.0]),
    st.none() | st.lists(st.floats(0.1, 50), min_size=5, max_size=5),
    st.frozensets(st.integers(0, 4)),
)
def test_what_is_mixed_and_learned_is_the_definition(
    names: list[str],
    rounds: list[tuple[list[Any], int]],
    least: float,
    stated: float,
    noise: list[float] | None,
    recent: frozenset[int],
) -> None:
    mixing, defined = Mixing(), Defined(names, recent)
    mixer = Mixer(mixing, names, [(lambda state: state, n) for n in range(len(names))])
    for drawn, emitted in rounds:
        states = drawn[: len(names)]
        expected = defined.candidates(states, least, stated, noise)
        found, chances = mixer.candidates(mixer.ask(states), least, stated, noise, recent=recent)
        assert {token: (p, by) for token, p, by, *_ in found} == {
            token: (pytest.approx(p), by) for token, (p, by, _) in expected.items()
        }
        mixed = [probability for _, probability, *_ in found]
        if noise is not None and not any(
            s for n, s in zip(names, states, strict=True) if n in MODELS
        ):
            scores = [p * noise[token] ** HEARD for token, p, *_ in found]
            others = max(0.02, 1.0 - sum(mixed))  # the ids that nobody named have no known noise
            mixed = [min(MOST, score / (sum(scores) + others)) for score in scores]
        assert chances == pytest.approx(mixed)
        some, _ = mixer.candidates(
            mixer.ask(states),
            least,
            stated,
            noise,
            allows=lambda token: token % 2 == 0,
            recent=recent,
        )
        assert some == [one for one in found if one[0] % 2 == 0]
        mixer.learn(found, TargetId(emitted))
        defined.learn(found, expected, emitted)
    again = Mixing()
    again.trust(tuple(names)).restore(mixing.trust(tuple(names)).learned())
    assert again.trust(tuple(names)).learned() == mixing.trust(tuple(names)).learned()


probabilities = st.floats(0, 1)


def test_a_source_of_a_language_has_the_weights_of_its_kind() -> None:
    assert weights_of("dictionary:pl") == WEIGHTS["dictionary"] != weights_of("somebody")
    assert weights_of("logits:2") == WEIGHTS["logits:2"]


@settings(deadline=None)
@given(probabilities, probabilities)
def test_nothing_is_changed_before_anything_was_learned(one: float, other: float) -> None:
    trust = Trust(rate=0.1)
    kept = min(max(one, LEAST), 1 - LEAST)
    assert trust.calibrated(one, "a") == pytest.approx(kept)
    if one < other:
        assert trust.calibrated(one, "a") <= trust.calibrated(other, "a")


@pytest.mark.parametrize(("said", "true"), [(0.5, 0.8), (0.9, 0.3), (0.2, 0.2)])
def test_what_is_said_becomes_what_is_true(said: float, true: float) -> None:
    trust, random, found = Trust(rate=0.05), Random(1), []
    for _ in range(3000):
        found.append(trust.calibrated(said, "a"))
        trust.learn([(found[-1], trust.of["a"], random.random() < true)])
    assert sum(found[500:]) / 2500 == pytest.approx(true, abs=0.03)
    assert trust.calibrated(said, "b") == pytest.approx(said)


def test_a_step_is_that_of_a_bayesian_estimate_and_never_smaller_than_the_rate() -> None:
    """With a prior of precision 3, to which each guess adds p (1 - p)."""
    trust, factor = Trust(rate=0.2), 1.0
    for number in range(1, 40):
        trust.learn([(0.5, trust.of["a"], True)])
        factor *= exp(0.5 * max(0.2, 1 / (3 + number / 4)))
        assert trust.of["a"].factor == pytest.approx(factor)
        assert trust.calibrated(0.5, "a") == pytest.approx(factor / (1 + factor))


@given(st.floats(0.05, 0.95))
def test_acceptance_is_learned_by_position(right: float) -> None:
    chance, acceptance = Random(3), Acceptance()
    for _ in range(2000):
        first = chance.random() < right
        acceptance.observe(2, 2 if first else 0)
    first, second, third = acceptance.probabilities(3)
    assert first == pytest.approx(right, abs=0.15)
    assert second > 0.9
    assert third == pytest.approx(second, abs=0.05)  # never seen: as good as those before it


def test_a_change_of_the_text_is_noticed() -> None:
    acceptance = Acceptance()
    for _ in range(1000):
        acceptance.observe(1, 1)
    for _ in range(30):
        acceptance.observe(1, 0)
    assert acceptance.probabilities(1)[0] < 0.35
