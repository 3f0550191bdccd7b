"""The benchmark on the demo pair: fair order, equal outputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from measured import block

from tokalign.build.alignment import align
from tokalign.evaluate.bench import Bench
from tokalign.evaluate.comparison import CONTROL, PLAIN, Condition, compare, conditions_of
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions


@pytest.fixture(scope="module")
def bench(demo_pair: tuple[LanguageModel[Any], LanguageModel[Any]]) -> Bench:
    target, draft = demo_pair
    drafting = Drafting(
        options=DraftingOptions(method="plain", translation="exact"),
        alignment=lambda: align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary),
    )
    decoder = Decoder(
        target=target, draft=draft, drafting=drafting, sampler=Sampling(temperature=0.7, seed=2)
    )
    texts = ("Wczoraj rano", "Wisła jest")
    return Bench(
        decoder=decoder,
        prompts={
            block(number): lambda given, text=text: given.prompt(text, use_template=False)
            for number, text in enumerate(texts, start=1)
        },
        conditions=conditions_of(drafting, lengths=[3], pair=(target.tokenizer, draft.tokenizer)),
        max_tokens=10,
    )


def test_every_condition_takes_every_place(bench: Bench) -> None:
    """Over as many prompts as there are conditions, each stands at each place once."""
    conditions = [Condition(name) for name in "abcde"]
    prompts = {block(number): lambda _: Prompt(target=[]) for number in range(1, 6)}
    fair = Bench(
        decoder=bench.decoder, prompts=prompts, conditions=conditions, max_tokens=1, seed=3
    )
    order = list(fair.schedule())
    assert Counter(order) == Counter((b, c) for b in prompts for c in conditions)
    places = Counter((condition, place % 5) for place, (_, condition) in enumerate(order))
    assert set(places.values()) == {1}
    assert order == list(fair.schedule())


@pytest.mark.slow
def test_all_conditions_emit_the_same_ids(bench: Bench) -> None:
    measured = list(bench.run())
    assert [(m.block, m.condition) for m in measured] == list(bench.schedule())
    found = compare(measured)
    assert found.ids_that_differ == 0
    assert all(row.tokens == 20 for row in found.overall)
    assert max(row.tokens_per_round for row in found.overall) > 1
    by_name = {str(row.condition): row for row in found.overall}
    assert by_name["exact, k = 3"].draft_passes_per_round > 2
    assert by_name["copy, k = 3"].draft_passes_per_round == 0


def test_conditions_are_those_that_the_pair_allows(bench: Bench) -> None:
    drafting, tokenizer = Drafting(), bench.decoder.target.tokenizer

    def names(*conditions: Condition) -> set[str]:
        return {condition.name for condition in conditions}

    alone = conditions_of(drafting, lengths=[2], pair=None)
    assert names(*alone) == {PLAIN, CONTROL, "copy", "hybrid"}
    same = conditions_of(drafting, lengths=[2, 4], pair=(tokenizer, tokenizer))
    assert names(*same) - names(*alone) == {"none"}
    assert names(*bench.conditions) - names(*alone) == {"context:5", "intersection", "exact"}
    assert [c.k for c in same if c.name == "none"] == [2, 4]
