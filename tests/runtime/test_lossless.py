"""Real models with two tokenizers: every drafter and translation emits the target's own output."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import pytest
from random_models import decoder_of, emitted
from small_tables import half_right, table_of

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.tables.dictionary import Dictionaries

ModelPair: TypeAlias = tuple[LanguageModel[Any], LanguageModel[Any]]
PROMPTS = ("Wczoraj rano", "Napisz: „żółw 🐟”, potem def f(x):\n    return")
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4)}


@pytest.fixture(scope="module")
def plain_output(demo_pair: ModelPair) -> Callable[[str, str], list[int]]:
    """The ids of plain decoding for a sampling and a prompt, each computed once."""
    return cache(lambda sampling, prompt: emit(demo_pair, sampling, prompt, method="plain"))


def emit(pair: ModelPair, sampling: str, prompt: str, **how: Any) -> list[int]:
    decoder = decoder_of(pair, SAMPLINGS[sampling], **how)
    given = decoder.prompt(prompt, use_template=False)
    return emitted(Generation(decoder, given, max_tokens=24))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("method", "translation", "knowing"),
    [
        ("copy", "none", 0),
        ("draft", "context:5", 0),
        ("draft", "intersection", 0),
        ("draft", "exact", 0),
        ("hybrid", "exact", 0),
        ("dictionary", "none", 1),
        ("copy", "none", 1),
        ("hybrid", "exact", 1),
        ("dictionary", "none", 2),
        ("hybrid", "exact", 2),
    ],
)
@pytest.mark.slow
def test_the_demo_pair_is_lossless(
    demo_pair: ModelPair,
    plain_output: Callable[[str, str], list[int]],
    sampling: str,
    method: str,
    translation: str,
    knowing: int,
) -> None:
    """knowing: how many dictionaries, and an earlier output, know parts of the output."""
    for prompt in PROMPTS:
        plain = plain_output(sampling, prompt)
        size = len(demo_pair[0].tokenizer.vocabulary)
        how = half_right(plain, size) if knowing else {"num_draft_tokens": 3}
        if knowing == 2:
            both = {"dictionary:a": how["dictionary"], "dictionary:b": table_of({}, size)}
            how["dictionary"] = Dictionaries(both)
        how |= {"method": method, "translation": translation}
        assert emit(demo_pair, sampling, prompt, **how) == plain
