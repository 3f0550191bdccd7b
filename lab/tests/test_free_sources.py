"""Recorded answers: whatever drafts, the answer comes out, and passes take what the curve says."""

from __future__ import annotations

from inspect import signature
from random import Random

import numpy as np
import pytest

from lab.benchmarks.block_tree import open_bench, rows
from lab.benchmarks.free_sources import (
    OWN,
    RecordedVerifier,
    Way,
    costs_of,
    decoded,
    free_sources,
    published,
)
from lab.benchmarks.recorded_answers import Answer
from lab.benchmarks.weights_fit import (
    Kinds,
    Place,
    examples_of,
    fit_weights,
    loss,
    places_of,
    recording,
)
from lab.project import SimulatedClock
from lab.round_costs import RoundCosts
from tokalign.runtime.draft.lookup import KEPT
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context, Finished, Started
from tokalign.tokenizer.vocabulary import TargetId

COSTS = costs_of("cpu")
WAYS = [way for ways in published() for way in ways]
HYBRID = free_sources(Drafting(options=DraftingOptions(method="hybrid")), COSTS, 64)


def an_answer(seed: int) -> Answer:
    """It copies half of the time from its prompt."""
    chance = Random(seed)
    prompt = [TargetId(chance.randrange(50)) for _ in range(40)]
    ids: list[TargetId] = []
    while len(ids) < 90:
        at = chance.randrange(30)
        ids += prompt[at : at + chance.randrange(2, 12)]
        ids.append(TargetId(chance.randrange(50)))
    likely = np.array([[token, *range(50, 49 + KEPT)] for token in ids], dtype=np.uint32)
    logprobs = np.log(np.array([[0.6, *[0.3 / KEPT] * (KEPT - 1)]] * len(ids), dtype=np.float32))
    return Answer(
        model="none",
        kind="code",
        number=seed,
        temp=0.0,
        prompt=prompt,
        ids=ids,
        likely=likely,
        logprobs=logprobs,
    )


@pytest.mark.parametrize("way", [*WAYS, HYBRID], ids=lambda way: way.name)
def test_an_answer_is_what_was_recorded_and_takes_what_its_rows_cost(way: Way) -> None:
    answer = an_answer(3)
    found = decoded(answer, way, COSTS)
    assert found.time == pytest.approx(sum(COSTS.verify(rows) for rows in found.rows))
    assert len(found.rows) < len(answer.ids)
    context, store = Context(answer.prompt), way.store()
    events = Decoding(
        context,
        way.make(answer, store, SimulatedClock()),
        RecordedVerifier(answer, store),
        limits=Limits(max_tokens=len(answer.ids)),
    )
    emitted = [
        one
        for event in events
        if not isinstance(event, Started | Finished)
        for one in event.emitted
    ]
    assert emitted == answer.ids


def test_dear_rows_leave_the_free_sources_as_fast_as_plain_decoding() -> None:
    dear, answer = RoundCosts(rows=(1.0, 3.0, 5.0)), an_answer(4)
    way = free_sources(Drafting(options=DraftingOptions(method="hybrid")), dear, 64)
    assert way.name == OWN
    assert decoded(answer, way, dear).time <= len(answer.ids) / 0.98


def test_a_session_drafts_from_its_earlier_answers_and_others_do_not() -> None:
    drafting = Drafting(options=DraftingOptions(method="hybrid"))
    times = {}
    for kept in (False, True):
        way = free_sources(drafting, COSTS, 64, kept=kept)
        times[kept] = [decoded(an_answer(1), way, COSTS).time for _ in range(2)]
    assert times[False][0] == times[False][1] == times[True][0]
    assert times[True][1] < 0.8 * times[True][0]


def test_fitted_weights_say_better_what_comes_in_the_answers_that_they_were_fitted_to() -> None:
    drafting = Drafting(options=DraftingOptions(method="hybrid"))
    places = [place for seed in range(3) for place in places_of(an_answer(seed), drafting)]
    kinds = Kinds(places)
    examples, present = examples_of(places, kinds), kinds.present()
    weights = fit_weights([examples], present, kinds.fitted(()))
    assert loss(examples, weights) < loss(examples, present)


def test_a_bench_of_trees_is_opened_with_every_option_of_its_command() -> None:
    options = {option.name for option in rows.params} - {"rows", "only"}
    assert options == set(signature(open_bench).parameters)


def test_trees_that_draft_while_recording_keep_the_places_that_were_looked_at() -> None:
    kept = list[Place]()
    with recording(kept):
        decoded(an_answer(5), HYBRID, COSTS)
    places = len(kept)
    assert places > 0
    assert all(place.expected for place in kept)
    decoded(an_answer(5), HYBRID, COSTS)
    assert len(kept) == places
