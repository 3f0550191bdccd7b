"""Two real models, end to end, where $TOKALIGN_REAL_MODELS says they are (`make test-real`).

Each drafts for the other across their vocabularies, and no output differs from plain decoding.

In float32 a choice may still depend on the number of rows of a pass where two ids are equally
likely to the last bit; that has not been seen in these texts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_lines import run
from places import ROOT

from tokalign.api.assemble import assemble, load_models
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions

pytestmark = pytest.mark.long

SMOLLM2, QWEN = "smollm2-135m", "qwen2.5-coder-0.5b"

PLAIN = DraftingOptions(method="plain")
TREE = DraftingOptions(method="draft", translation="exact", num_draft_tokens=3)
FREE = DraftingOptions(method="hybrid", draft_rows=6)
BOTH = DraftingOptions(method="hybrid", num_draft_tokens=2)
CHOSEN = DraftingOptions(method="hybrid")


class RealModels(NamedTuple):
    """The folder that holds both models, and both of them loaded."""

    folder: Path
    loaded: dict[str, Any]


@pytest.fixture(scope="module")
def real() -> RealModels:
    given = os.environ.get("TOKALIGN_REAL_MODELS")
    if given is None:
        pytest.skip(f"needs $TOKALIGN_REAL_MODELS, a folder with {SMOLLM2} and {QWEN}")
    folder = Path(given)
    models = load_models([str(folder / name) for name in (SMOLLM2, QWEN)], dtype="float32")
    return RealModels(folder, dict(zip((SMOLLM2, QWEN), models, strict=True)))


@cache
def prompts() -> list[str]:
    folder = ROOT / "lab" / "prompts" / "real"
    texts = [path.read_text("utf-8").splitlines() for path in sorted(folder.glob("*.txt"))]
    return [text.replace("\\n", "\n") for of_each in zip(*texts, strict=False) for text in of_each]


@pytest.mark.parametrize(("target", "draft"), [(QWEN, SMOLLM2), (SMOLLM2, QWEN)])
def test_a_question_is_answered_with_drafts_of_the_other_model(
    real: RealModels, target: str, draft: str
) -> None:
    asked: list[object] = ["decode", "--target", real.folder / target, "--dtype", "float32"]
    asked += ["-p", "What is the capital of France?", "-m", 24, "--json", "--quiet"]
    plain = run(*asked, "--method", "plain").json
    drafted = run(*asked, "--draft", real.folder / draft, "--num-draft-tokens", 3).json
    assert "Paris" in plain["text"]
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["per_source"]["draft"]["accepted"] > 0
    assert drafted["rounds"] < plain["rounds"]


def decoded(decoder: Decoder, text: str, temperature: float, tokens: int) -> Generation:
    sampler = Sampling(temperature=temperature, seed=len(text))
    generation = Generation(
        replace(decoder, sampler=sampler), decoder.prompt(text), max_tokens=tokens
    )
    for _ in generation:
        pass
    return generation


@pytest.mark.parametrize(
    ("target", "draft", "ways", "texts", "tokens"),
    [
        (QWEN, SMOLLM2, (TREE, BOTH, CHOSEN), 4, 96),
        (SMOLLM2, QWEN, (TREE,), 3, 64),
        (SMOLLM2, None, (FREE, CHOSEN), 16, 144),
    ],
    ids=["qwen", "smollm2", "smollm2 alone"],
)
def test_no_output_differs_from_plain_decoding(
    real: RealModels,
    target: str,
    draft: str | None,
    ways: Sequence[DraftingOptions],
    texts: int,
    tokens: int,
) -> None:
    """About 5,000 tokens in all, every second text drawn at T = 0.7.

    Most are SmolLM2's own, whose passes take a third of Qwen's.
    """
    model, other = real.loaded[target], draft and real.loaded[draft]
    plain, *drafted = [assemble(model, None, PLAIN), *[assemble(model, other, way) for way in ways]]
    accepted = dict.fromkeys(range(len(drafted)), 0)
    for number, text in enumerate(prompts()[:texts]):
        temperature = 0.7 if number % 2 else 0.0
        expected = decoded(plain, text, temperature, tokens).context.emitted
        for way, decoder in enumerate(drafted):
            found = decoded(decoder, text, temperature, tokens)
            assert list(found.context.emitted) == list(expected), (text, ways[way])
            accepted[way] += found.statistics.num_accepted_draft_tokens
    assert all(accepted.values())
