"""Real models with two tokenizers: every drafter and translation emits the target's own output."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from places import DEMO
from small_tables import table_of

from tokalign.build.alignment.alignment_bundle import align
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.remembered import OutputStore

ModelPair: TypeAlias = tuple[LanguageModel[Any], LanguageModel[Any]]
TOKENS = 24
PROMPTS = ("Wczoraj rano", "Napisz: „żółw 🐟”, potem def f(x):\n    return")
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4)}


@pytest.fixture(scope="module")
def demo_pair() -> ModelPair:
    return (
        LanguageModel.from_folder(DEMO / "target", dtype="float32"),
        LanguageModel.from_folder(DEMO / "draft", dtype="float32"),
    )


@pytest.fixture(scope="module")
def plain_output(demo_pair: ModelPair) -> Callable[[str, str], list[int]]:
    """The ids of plain decoding for a sampling and a prompt, each computed once."""
    return cache(
        lambda sampling, prompt: emit(
            demo_pair, SAMPLINGS[sampling], prompt, TOKENS, method="plain"
        )
    )


def emit(
    pair: ModelPair,
    sampling: Sampling,
    prompt: str,
    tokens: int,
    **how: Any,
) -> list[int]:
    target, draft = pair
    decoder = Decoder(
        target=target,
        draft=draft,
        drafting=Drafting(
            alignment=lambda: align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary),
            **how,
        ),
        sampler=sampling,
    )
    generation = Generation(decoder, decoder.prompt(prompt, use_template=False), max_tokens=tokens)
    for _ in generation:
        pass
    return list(generation.context.emitted)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("method", "translation"),
    [
        ("copy", "none"),
        ("draft", "context:5"),
        ("draft", "intersection"),
        ("draft", "exact"),
        ("hybrid", "exact"),
    ],
)
@pytest.mark.slow
def test_the_demo_pair_is_lossless(
    demo_pair: ModelPair,
    plain_output: Callable[[str, str], list[int]],
    sampling: str,
    method: str,
    translation: str,
) -> None:
    for prompt in PROMPTS:
        drafted = emit(
            demo_pair,
            SAMPLINGS[sampling],
            prompt,
            TOKENS,
            method=method,
            translation=translation,
            num_draft_tokens=3,
        )
        assert drafted == plain_output(sampling, prompt)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", ["dictionary", "copy", "hybrid"])
@pytest.mark.slow
def test_all_sources_together_are_lossless(
    demo_pair: ModelPair,
    plain_output: Callable[[str, str], list[int]],
    sampling: str,
    method: str,
) -> None:
    """Table and session know parts of the output, so that some proposals of each are wrong."""
    for prompt in PROMPTS:
        plain = plain_output(sampling, prompt)
        ids = [*plain[:18], *plain[5:]]
        entries = {(ids[i],): ((ids[i + 1], ids[i + 4]), 0.8) for i in range(0, len(ids) - 4, 3)}
        store = OutputStore()
        store.add(plain[8:16])
        drafted = emit(
            demo_pair,
            SAMPLINGS[sampling],
            prompt,
            TOKENS,
            method=method,
            translation="exact",
            dictionary=table_of(entries, len(demo_pair[0].tokenizer.vocabulary)),
            outputs=(store.text,),
        )
        assert drafted == plain


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize("draft", ["draft-llama-tiny", "draft-polish-tiny"])
def test_the_shared_pairs_are_lossless(shared_data: Path, draft: str) -> None:
    """A short run; `lab/benchmarks/lossless.py` does 30 prompts of 128 tokens with everything."""
    models = shared_data / "models"
    pair = (
        LanguageModel.from_folder(models / "target-bielik-tiny", dtype="float32"),
        LanguageModel.from_folder(models / draft, dtype="float32"),
    )
    plain = emit(pair, Sampling(), PROMPTS[0], 24, method="plain")
    drafted = emit(pair, Sampling(), PROMPTS[0], 24, method="draft", translation="intersection")
    assert drafted == plain
