"""What draft tokens begin with in the target's ids, and how far the target's noise decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokalign.build.alignment import intersect
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.coupling import WEIGHTS, Coupling
from tokalign.tables.alignment import NO_TOKEN
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_TEMPERATURE = 0.7


def test_first_ids_are_those_of_the_targets_encoding(
    bielik: Tokenizer[Any], llama: Tokenizer[Any]
) -> None:
    """Bielik drafts for Llama: of tokens that Llama lacks, too. Ends stand for ends."""
    pair = Pair(llama, bielik)
    shared = intersect(bielik.vocabulary, llama.vocabulary)
    firsts, several = pair.first_ids(shared), 0
    for token, spelled in enumerate(bielik.vocabulary.tokens):
        if spelled and shared.target_of(token) is None:
            ids = llama.encoder.encode(spelled)
            assert (firsts.first[token], firsts.counts[token]) == (ids[0], len(ids))
            several += 1
    assert several > 1000
    known = shared.draft_to_target != NO_TOKEN
    assert (firsts.first[known] == shared.draft_to_target[known]).all()
    assert (firsts.counts[known] == 1).all()
    for draft, target in pair.roles().items():
        assert firsts.first[draft] == target
    few = Pair(llama, bielik, 1000).first_ids(shared)
    assert few.first.max() < 1000


def _chosen(rng: np.random.Generator, power: float, rounds: int) -> Coupling:
    """A target as sure as the draft to a power, with noise that the draft knows."""
    coupling, text = Coupling(), [TargetId(0)]
    for _ in range(rounds):
        logprobs = np.log(rng.dirichlet(np.full(30, 0.3)))
        noise = _TEMPERATURE * rng.gumbel(size=30)
        told = {TargetId(i): float(logprob) for i, logprob in enumerate(logprobs)}
        coupling.expect(len(text), told, noise)
        text.append(TargetId(int(np.argmax(power * logprobs + noise + 0.3 * rng.gumbel(size=30)))))
        coupling.observe(text)
    return coupling


@pytest.mark.parametrize(("power", "least", "most"), [(1.0, 0.7, 1.0), (8.0, 0.0, 0.5)])
def test_the_surer_the_target_the_less_its_noise_decides(
    power: float, least: float, most: float
) -> None:
    found = _chosen(np.random.default_rng(3), power, 120)
    assert least <= WEIGHTS[found.best] <= most


def test_only_the_id_at_the_noted_position_is_learned_from() -> None:
    """Nothing emitted, an id of which nothing was said, and a second look change nothing."""
    coupling = Coupling()
    text = [TargetId(5), TargetId(1), TargetId(9), TargetId(4)]
    before = coupling.best
    coupling.observe(text)
    assert coupling.best == before
    for _ in range(50):
        coupling.expect(len(text), {TargetId(4): -0.1, TargetId(7): -3.0}, np.zeros(10))
        coupling.observe(text)
    assert coupling.best == before
    for _ in range(50):  # the noise is for another id each time, and never counts
        coupling.expect(3, {TargetId(4): -0.5, TargetId(7): -1.0}, np.arange(10.0))
        coupling.observe(text)
    assert WEIGHTS[coupling.best] == min(WEIGHTS)
    learned = coupling.best
    coupling.observe(text)
    assert coupling.best == learned
