"""The decode loop: no drafter changes what is emitted, only how fast."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import WildDrafter, generate, plainly, random_model
from trees import ids

from tokalign.evaluate.replay import replay
from tokalign.runtime.drafting import NoDrafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import (
    Context,
    Drafter,
    Event,
    Finished,
    Proposal,
    Round,
    Started,
    Verdict,
)
from tokalign.runtime.statistics import Statistics
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, seed=11)


class Fixed(Drafter):
    """Proposes the same ids again and again."""

    def __init__(self, *numbers: int) -> None:
        self._ids = ids(*numbers)

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(tree=TokenTree.chain(self._ids[:limit], "fixed"))


def test_plain_decoding_is_mlx_lms() -> None:
    assert generate(NoDrafter(), GREEDY) == plainly(random_model(), [5, 17, 3], 40)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(12))
def test_no_drafter_changes_the_output(sampling: Sampling, seed: int) -> None:
    plain = generate(NoDrafter(), sampling)
    assert generate(WildDrafter(plain, seed=seed), sampling) == plain


@settings(max_examples=60, deadline=None)
@given(
    reference=st.lists(st.integers(0, 9), min_size=1, max_size=40).map(lambda x: ids(*x)),
    seed=st.integers(0, 1000),
    given=st.integers(0, 5),
)
def test_a_replay_emits_its_reference_exactly(
    reference: tuple[TargetId, ...], seed: int, given: int
) -> None:
    statistics, emitted = Statistics(), []
    drafter = WildDrafter(reference[given:], seed=seed)
    for event in replay(reference, drafter, prompt_tokens=given):
        statistics.observe(event)
        if isinstance(event, Round):
            at = given + len(emitted)
            emitted += event.emitted
            right = reference[at : at + event.accepted]
            assert tuple(event.tree.ids[i] for i in event.path) == right
    assert tuple(emitted) == reference[given:]
    accepted = statistics.num_accepted_draft_tokens
    assert statistics.generation_tokens == statistics.rounds + accepted
    # DictSpec's invariant, in whole numbers: speed-up = 1 + coverage x MAL.
    if statistics.num_spec_steps:
        assert statistics.tokens_per_round == pytest.approx(
            1 + statistics.coverage * statistics.mean_accepted_length, abs=1e-12
        )


def run(limits: Limits, reference: tuple[TargetId, ...], drafter: Fixed) -> list[Event]:
    from tokalign.evaluate.replay import ReplayVerifier

    return list(Decoding(Context([]), drafter, ReplayVerifier(reference), limits=limits))


def emitted_by(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Round) for token in event.emitted]


def test_nothing_is_emitted_after_a_stop_id_in_an_accepted_run() -> None:
    limits = Limits(max_tokens=None, stop_ids=frozenset({2}))
    events = run(limits, ids(1, 2, 3, 4, 5), Fixed(1, 2, 3))
    assert emitted_by(events) == [1, 2]
    assert events[-1] == Finished("stop")
    assert isinstance(events[-2], Round)
    assert events[-2].accepted == 2
    assert events[-2].sources == ("fixed", "fixed")


def test_no_more_than_max_tokens_are_proposed_or_emitted() -> None:
    events = run(Limits(max_tokens=3), ids(1, 1, 1, 1, 1, 1), Fixed(1, 1, 1, 1, 1, 1))
    assert [type(event) for event in events] == [Started, Round, Finished]
    assert emitted_by(events) == [1, 1, 1]
    assert [len(e.tree) for e in events if isinstance(e, Round)] == [2]
    assert events[-1] == Finished("length")


def test_the_context_length_ends_a_generation() -> None:
    events = run(Limits(max_tokens=None, context_length=4), ids(*range(9)), Fixed(0, 1))
    assert emitted_by(events) == [0, 1, 2, 3]
    assert events[-1] == Finished("length")


class Interrupted:
    """A verifier that is interrupted in its third pass."""

    def __init__(self) -> None:
        self._passes = 0

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        self._passes += 1
        if self._passes == 3:
            raise KeyboardInterrupt
        return Verdict(ids=ids(self._passes), path=(), rows=2)


def test_statistics_stand_when_a_generation_is_interrupted() -> None:
    statistics, context = Statistics(), Context([])

    def fold() -> Iterator[Event]:
        for event in Decoding(context, Fixed(8), Interrupted(), limits=Limits(max_tokens=9)):
            statistics.observe(event)
            yield event

    with pytest.raises(KeyboardInterrupt):
        list(fold())
    assert list(context.emitted) == [1, 2]
    assert statistics.rounds == statistics.generation_tokens == 2
    assert statistics.finish_reason is None


def test_a_consumer_may_stop_at_any_event() -> None:
    context = Context([])
    events = iter(Decoding(context, Fixed(8), Interrupted(), limits=Limits(max_tokens=9)))
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert list(context.emitted) == [1]


def test_time_between_events_is_not_counted() -> None:
    """Only that of drafter and verifier is, and what the drafter learns is drafting of the next
    round."""
    ticks = iter(range(100))
    events = Decoding(
        Context([]),
        Fixed(8),
        Interrupted(),
        limits=Limits(max_tokens=2),
        clock=lambda: float(next(ticks)),
    )
    rounds = [e for e in events if isinstance(e, Round)]
    assert [one.seconds for one in rounds] == [3.0, 4.0]
    assert [(one.drafting, one.verification) for one in rounds] == [(1.0, 1.0), (2.0, 1.0)]


def test_nothing_is_proposed_across_the_position_where_quantization_begins() -> None:
    options = CacheOptions(kv_bits=8, quantized_kv_start=20)
    target: TargetModelSession = TargetModelSession(random_model(), options)
    limits = Limits(max_tokens=None, target=target)
    for length, most in ((17, 3), (19, 1), (20, 0)):
        assert limits.proposed(Context([TargetId(0)] * length)) == most
    assert limits.proposed(Context([TargetId(0)] * 21)) > 1000
