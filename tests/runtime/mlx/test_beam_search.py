"""Beam search on the device: what a plain search over the paper's equations finds, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from random_drafters import random_drafter
from random_models import VOCABULARY, random_model
from trees import paths

from lab.baselines.whole_beams import last_beams
from tokalign.runtime.mlx.beam_search import Beams, BeamSession, BeamShape, State
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter, RecurrentSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.taps import state_rows
from tokalign.tokenizer.vocabulary import TargetId

HIDDEN = 32
LAST = 17

Floats = NDArray[np.float64]


def hidden_state() -> mx.array:
    return mx.random.normal((1, HIDDEN), key=mx.random.key(4))


class AfterState(BeamSession):
    """The drafter after one hidden state and one id."""

    def __init__(self, drafter: RecurrentDrafter) -> None:
        self._drafter = drafter

    def begin(self, ids: Sequence[TargetId]) -> tuple[State, mx.array]:
        return self.step(self._drafter.initial_state(hidden_state()), mx.array([*ids]))

    def step(self, state: State, ids: mx.array) -> tuple[State, mx.array]:
        return self._drafter.step(state, ids)


def beams_of(drafter: RecurrentDrafter, shape: BeamShape, count: int) -> Beams:
    beams = AfterState(drafter).search([TargetId(LAST)], shape, count=count)
    assert beams is not None
    return beams


def logprobs_after(drafter: RecurrentDrafter, ids: list[int]) -> Floats:
    """What the drafter says after `ids`, read one by one."""
    state = drafter.initial_state(hidden_state())
    for token in ids:
        state, logits = drafter.step(state, mx.array([token]))
    return np.array((logits - logits.logsumexp(axis=-1, keepdims=True))[0], dtype=np.float64)


def plain_search(drafter: RecurrentDrafter, shape: BeamShape) -> list[tuple[list[int], float]]:
    """The beams and their log-probabilities, with lists and sorting."""
    beams: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(shape.length):
        longer = []
        for ids, reached in beams:
            of_next = logprobs_after(drafter, [LAST, *ids])
            longer += [([*ids, token], reached + of_next[token]) for token in range(VOCABULARY)]
        beams = sorted(longer, key=lambda one: -one[1])[: shape.width]
    return beams


@pytest.mark.parametrize("shape", [BeamShape(*one) for one in product((1, 2, 4), (1, 4))])
def test_the_beams_are_those_of_a_plain_search(shape: BeamShape) -> None:
    drafter = random_drafter(random_model())
    expected = plain_search(drafter, shape)
    tree = last_beams(beams_of(drafter, shape, shape.width))
    prefixes = {tuple(ids[: n + 1]) for ids, _ in expected for n in range(shape.length)}
    assert set(paths(tree)) == prefixes
    assert len(tree) == len(prefixes)  # every shared prefix is one row
    assert list(tree.first_chain.ids) == expected[0][0]


def test_every_listed_id_has_its_conditional_probability() -> None:
    drafter = random_drafter(random_model())
    tree = beams_of(drafter, BeamShape(3, 3), 5).tree("drafter")
    assert len(tree) == 5 + 2 * 3 * 5
    for ids, probability in paths(tree).items():
        after = logprobs_after(drafter, [LAST, *ids[:-1]])
        assert probability == pytest.approx(np.exp(after[ids[-1]]), rel=1e-4)


def test_what_is_impossible_is_left_out() -> None:
    """A filter may leave one id, so that the other beams have no probability."""
    no = float("-inf")
    found = Beams(
        ids=[[[7, 1]] * 2, [[8, 2], [5, 6]]],  # type: ignore[arg-type]
        logprobs=[[[0.0, no], [no, no]], [[-0.5, -1.0], [-0.1, -2.0]]],
        chosen=[[0, 1], [0, 1]],
    )
    for tree in (found.tree("drafter"), last_beams(found)):
        assert [*paths(tree)] == [(7,), (7, 8), (7, 2)]


@pytest.fixture
def compiling() -> Iterator[None]:
    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.mark.slow
def test_a_compiled_step_finds_the_same(compiling: None) -> None:
    drafter = random_drafter(random_model())
    start = drafter.initial_state(hidden_state())
    state, exit_ = drafter.compiled_advance(start, mx.array([LAST]))
    other, expected = drafter.step(start, mx.array([LAST]))
    assert np.allclose(np.array(drafter.logits(exit_)), np.array(expected), atol=1e-4)
    assert np.allclose(np.array(state[0]), np.array(other[0]), atol=1e-5)


@pytest.mark.slow
def test_the_head_of_a_compiled_drafter_follows_the_text(
    compiling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(type=mx.gpu)
    monkeypatch.setattr(mx, "default_device", lambda: gpu)  # where steps are compiled
    target = TargetModelSession(random_model(), watch=state_rows)
    frequent = np.arange(0, VOCABULARY, 2, dtype=np.uint32)
    drafter = random_drafter(random_model())
    session, other = (drafter.short_session(target, frequent) for _ in range(2))
    assert isinstance(session, RecurrentSession)
    assert isinstance(other, RecurrentSession)
    assert session._advance is other._advance, "it is compiled once for all requests"
    for ids in ([4, 16, 2], [4, 16, 2, 7, 8]):
        text = [TargetId(i) for i in ids]
        target.logits(text[:-1])
        assert session.head is not None
        session.head.follow(text)
        begun = session.begin(text)
        assert begun is not None
        assert mx.isfinite(begun[1][0, 7]).item() == (7 in text)


# -- what the host waits for -----------------------------------------------------------------------

_CONVERSIONS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__iter__")


class Waits:
    """Notes every call by which the host may wait for the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in _CONVERSIONS:
            monkeypatch.setattr(mx.array, name, self._noting(name, getattr(mx.array, name)))
        monkeypatch.setattr(mx, "eval", self._noting("eval", mx.eval))
        monkeypatch.setattr(mx, "synchronize", self._noting("synchronize", mx.synchronize))

    def _noting(self, name: str, call: Any) -> Any:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.seen.append(name)
            return call(*arguments, **named)

        return noted


SAMPLED = Sampling(temperature=0.7, top_p=0.9, seed=4)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_drafting_waits_once_at_its_end(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TargetModelSession(random_model(), watch=state_rows)
    session = RecurrentSession(random_drafter(random_model()), target)
    ids = [TargetId(i) for i in (5, 17, 3, 8)]
    target.logits(ids[:3])
    waits = Waits(monkeypatch)
    sampler = sampling.draft_sampler
    told: list[Sequence[TargetId]] = []
    shape, meanwhile = BeamShape(4, 5), told.append
    found = session.search(ids, shape, count=8, sampler=sampler, meanwhile=meanwhile)
    assert found is not None
    assert told == [ids]
    # The arrays are there by the time they are converted.
    assert waits.seen == ["eval", "tolist", "tolist", "tolist"]
    assert session.passes == 5
