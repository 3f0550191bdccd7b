"""Running a study on the demo pair: resumed after any number of generations, drifts repeated."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from places import DEMO
from studied import CONTROL, PLAIN, a_block, measured

from lab.baselines.decoder import BaselineDecoder, BaselineOptions
from lab.study.attribution import Explainer, _Judge
from lab.study.bench import StudyBench
from lab.study.causes import CAUSES, shares_of
from lab.study.conditions import Condition, PromptBlock
from lab.study.measurements import StudyMeasurement
from lab.study.protocol import PRESETS, Arm
from lab.study.run import Study, expected_seconds
from tokalign.build.alignment import align
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.translation.base import Pair

CHAIN = Condition("exact", 2, "draft", chain=True)
TREE = Condition("exact", 2, "draft")
RAW, NAIVE = Condition("raw", 2, "draft"), Condition("naive", 2, "draft")
UNISPEC = Condition("unispec", 20)


@pytest.fixture(scope="module")
def study() -> Study:
    target = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    draft = LanguageModel.from_folder(DEMO / "draft", dtype="float32")
    options = BaselineOptions(method="plain", translation="exact")
    drafting = Drafting(
        options=options,
        alignment=lambda: align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary),
    )
    alone = BaselineDecoder(target=target, drafting=Drafting(options=options))
    pair = replace(alone, draft=draft, drafting=drafting)
    arms = [
        Arm(PLAIN, sampled=True),
        Arm(CONTROL, sampled=True),
        Arm(CHAIN),
        Arm(TREE, sampled=True),
        Arm(RAW),
        Arm(NAIVE),
        Arm(UNISPEC),
    ]
    bench = StudyBench(
        decoder=alone,
        others={"draft": pair},
        prompts={
            a_block(number, temperature=temperature): lambda given, text=text: given.prompt(text)
            for number, text in enumerate(("Ile nóg ma pająk?", "Opisz las jesienią."), start=1)
            for temperature in (0.0, 0.7)
        },
        conditions=[arm.condition for arm in arms],
        max_tokens=10,
    )
    return Study(protocol=replace(PRESETS["quick"], attempts=1), arms=arms, bench=bench)


@pytest.mark.slow
def test_a_study_is_whole_lossless_and_resumable(study: Study) -> None:
    told: list[tuple[int, float]] = []
    first = list(islice(study.run(told=lambda *both: told.append(both)), 7))
    assert told[0][0] == 20
    assert told[0][1] > 0
    found = first + list(study.run(first))
    assert [(m.block, m.condition) for m in found] == study.pending()
    assert study.pending(found) == []
    for block in study.bench.prompts:
        assert len({m.token_ids for m in found if m.block == block}) == 1
    assert 5 < max(len(m.token_ids) for m in found) <= 10
    sampled = [m.condition for m in found if m.block == a_block(1, temperature=0.7)]
    assert set(sampled) == {PLAIN, CONTROL, TREE}
    for one in found:
        assert sum(one.work.rows.values()) == one.rounds - 1
        assert one.work.chain_accepted <= one.accepted
        assert one.surroundings.peak_gb > 0
        assert one.surroundings.load is not None
        if one.condition == CHAIN:
            assert one.work.chain_proposed == one.proposed
    assert any(m.work.chain_proposed < m.proposed for m in found if m.condition == TREE)
    assert any("unispec" in m.sources for m in found if m.condition == UNISPEC)


def test_of_a_prompt_the_first_condition_of_each_draft_model_reads_it(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others compute only its last id, because their session's cache holds the rest of it."""
    computed: list[int] = []
    target = study.bench.decoder.target.model
    original = type(target).__call__

    def counted(model: Any, ids: Any, *arguments: Any, **named: Any) -> Any:
        if model is target:
            computed.append(ids.shape[-1])
        return original(model, ids, *arguments, **named)

    monkeypatch.setattr(type(target), "__call__", counted)
    conditions = [Condition(PLAIN), Condition("copy", 2), Condition("context:5", 2, "draft")]
    greedy = {b: make for b, make in study.bench.prompts.items() if not b.temperature}
    shared = replace(study.bench, conditions=conditions, prompts=greedy, max_tokens=1, seed=1)
    found, before = [], set[tuple[PromptBlock, str]]()
    for one in shared.run(warmed=lambda _: computed.clear()):
        found.append(one)
        group = one.block, one.condition.draft
        assert one.work.reads_prompt == (group not in before)
        assert (sum(computed) > one.prompt_tokens / 2) == one.work.reads_prompt
        before.add(group)
        computed.clear()
    assert sum(bool(one.work.reads_prompt) for one in found) == 4, "two blocks, two groups"


@pytest.mark.slow
def test_every_round_has_one_cause(study: Study) -> None:
    explainer, block = Explainer(study.bench, "draft"), a_block(1)
    found = [explainer.explain(block, condition) for condition in (CHAIN, TREE, RAW, NAIVE)]
    for one in found:
        generation = study.bench.generation(block, one.condition)
        assert one.tokens == len(list(generation))
        assert sum(one.causes.values()) == generation.statistics.rounds
        assert set(one.causes) <= set(CAUSES)
    by_condition = {one.condition: one.causes for one in found}
    assert not {"vocabulary", "context"} & set(by_condition[CHAIN])
    shares = shares_of(found)
    for one in shares.values():
        assert sum(one.values()) == pytest.approx(1)
    again = Explainer(study.bench, "draft").explain(block, CHAIN)
    assert again.causes == by_condition[CHAIN]


@pytest.mark.slow
@pytest.mark.parametrize("knows", [True, False])
def test_models_disagree_where_the_oracle_is_wrong(study: Study, knows: bool) -> None:
    """An oracle that knows the text never is; one that knows nothing always is."""
    generation = study.bench.generation(a_block(1), CHAIN)
    for _ in generation:
        pass
    emitted = generation.context.emitted
    decoder = study.bench.others["draft"]
    assert decoder.draft is not None
    prompt = study.bench.prompts[a_block(1)](decoder)
    given = len(prompt.target)
    judge = _Judge(
        Pair(decoder.target.tokenizer, decoder.draft.tokenizer),
        decoder.drafting.alignment(),
        prompt,
        CHAIN,
        lambda ids: emitted[len(ids) - given] if knows else None,
    )
    ids, causes = list(prompt.target), set[str]()
    for one in generation.rounds:
        causes.add(judge.cause(one, ids))
        ids += one.emitted
    assert ("model" in causes) != knows
    assert ("boundary" in causes) == knows


def test_disturbed_blocks_are_measured_again(study: Study) -> None:
    """Attempts follow from what is done: no clock, no state."""
    twice = replace(study, protocol=replace(study.protocol, attempts=2))

    def done(block_number: int, control: float) -> list[StudyMeasurement]:
        block = a_block(block_number)
        return [
            measured(PLAIN, block, tokens_per_second=10.0),
            measured(CONTROL, block, tokens_per_second=control),
        ]

    found = [*done(1, 12.0), *done(2, 10.5)]
    again = twice._attempt(2, found)
    assert list(again.prompts) == [a_block(1, repeat=2)]
    assert {c for _, c in again.schedule()} == {arm.condition for arm in twice.arms}


def test_the_estimate_is_the_speed_of_the_warm_up() -> None:
    warm = [measured(PLAIN, tokens_per_second=10.0), measured(TREE, tokens_per_second=0.0)]
    pending = [(a_block(1), PLAIN), (a_block(2), PLAIN), (a_block(1), TREE)]
    protocol = replace(PRESETS["quick"], max_tokens=20)
    assert expected_seconds(warm, pending, protocol) == pytest.approx(6.0)
