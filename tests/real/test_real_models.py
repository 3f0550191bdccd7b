"""Two real models, end to end, where $TOKALIGN_REAL_MODELS says they are (`make test-real`).

Each drafts for the other across their vocabularies, and no output differs from plain decoding.

In float32 a choice may still depend on the number of rows of a pass where two ids are equally
likely to the last bit; that has not been seen in these texts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from places import ROOT
from served import metric, serving

from tokalign.api.assemble import assemble, load_models
from tokalign.cli.chat import command as chat_command
from tokalign.cli.decode import command as decode_command
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.serve import Settings

pytestmark = pytest.mark.long

SMOLLM2, QWEN = "smollm2-135m", "qwen2.5-coder-0.5b"

PLAIN = DraftingOptions(method="plain")
TREE = DraftingOptions(method="draft", translation="exact", num_draft_tokens=3)
FREE = DraftingOptions(method="hybrid", draft_rows=6)
BOTH = DraftingOptions(method="hybrid", num_draft_tokens=2)
CHOSEN = DraftingOptions(method="hybrid")

BOTH_WAYS = pytest.mark.parametrize(("target", "draft"), [(QWEN, SMOLLM2), (SMOLLM2, QWEN)])


class RealModels(NamedTuple):
    """The folder that holds both models, and both of them loaded."""

    folder: Path
    loaded: dict[str, Any]


@pytest.fixture(scope="module")
def real() -> RealModels:
    place = os.environ.get("TOKALIGN_REAL_MODELS")
    if place is None:
        pytest.skip(f"needs $TOKALIGN_REAL_MODELS, a folder with {SMOLLM2} and {QWEN}")
    folder = Path(place)
    models = load_models([str(folder / name) for name in (SMOLLM2, QWEN)], dtype="float32")
    return RealModels(folder, dict(zip((SMOLLM2, QWEN), models, strict=True)))


@cache
def prompts() -> list[str]:
    folder = ROOT / "lab" / "prompts" / "real"
    texts = [path.read_text("utf-8").splitlines() for path in sorted(folder.glob("*.txt"))]
    return [text.replace("\\n", "\n") for of_each in zip(*texts, strict=False) for text in of_each]


def command_line(
    command: Any, real: RealModels, target: str, *options: str, typed: Sequence[str] = ()
) -> list[Any]:
    """The objects that a command prints."""
    usual = ["--target", str(real.folder / target), "--dtype", "float32", "--json", "--quiet"]
    text = "".join(f"{line}\n" for line in typed)
    ran = CliRunner().invoke(command, [*usual, *options], input=text, catch_exceptions=False)
    assert ran.exit_code == 0, ran.stderr
    found, rest, read = [], ran.stdout.strip(), json.JSONDecoder().raw_decode
    while rest:
        one, end = read(rest)
        found.append(one)
        rest = rest[end:].lstrip()
    return found


@BOTH_WAYS
def test_a_question_is_answered_with_drafts_of_the_other_model(
    real: RealModels, target: str, draft: str
) -> None:
    question = ["-p", "What is the capital of France?", "-m", "24"]
    [plain] = command_line(decode_command, real, target, *question, "--method", "plain")
    by_other = ["--draft", str(real.folder / draft), "--num-draft-tokens", "3"]
    [drafted] = command_line(decode_command, real, target, *question, *by_other)
    assert "Paris" in plain["text"]
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["per_source"]["draft"]["accepted"] > 0
    assert drafted["rounds"] < plain["rounds"]


def test_a_chat_of_ten_turns_is_that_of_the_target_alone(real: RealModels) -> None:
    typed = ["My name is Olga and I live in Gdynia. Please remember that."]
    typed += [f"What is {n} times {n + 1}?" for n in range(2, 10)]
    typed.append("What is my name?")
    options = ["-m", "24", "--no-calibrate"]
    drafts = ["--draft", str(real.folder / SMOLLM2), "--num-draft-tokens", "3"]
    plain = command_line(chat_command, real, QWEN, *options, "--method", "plain", typed=typed)
    drafted = command_line(chat_command, real, QWEN, *options, *drafts, typed=typed)
    assert [one["token_ids"] for one in drafted] == [one["token_ids"] for one in plain]
    assert len(drafted) == 10
    assert "Olga" in drafted[-1]["text"]
    assert sum(one["num_accepted_draft_tokens"] for one in drafted) > 0


def test_the_openai_client_is_answered_as_by_the_target_alone(real: RealModels) -> None:
    from openai import OpenAI

    settings = Settings(
        model=str(real.folder / QWEN),
        draft_model=str(real.folder / SMOLLM2),
        dtype="float32",
        drafting=DraftingOptions(num_draft_tokens=3),
    )
    decoder = assemble(real.loaded[QWEN], None, PLAIN)
    messages: list[Any] = []
    with serving(settings) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        for text in ("Write a Python function that doubles a number.", "And one that halves it?"):
            messages.append({"role": "user", "content": text})
            generation = Generation(decoder, Request(decoder.prompt(messages), max_tokens=48))
            expected = "".join(piece.text for piece in generation) + generation.rest()
            chunks = client.chat.completions.create(
                model="default_model", messages=messages, max_tokens=48, stream=True
            )
            answer = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert answer.strip() == expected.strip()
            messages.append({"role": "assistant", "content": answer})
        assert metric(server, "tokalign_proposed_tokens_total") > 0


def decoded(decoder: Decoder, text: str, temperature: float, tokens: int) -> Generation:
    sampler = Sampling(temperature=temperature, seed=len(text))
    request = Request(decoder.prompt(text), max_tokens=tokens, sampler=sampler)
    generation = Generation(decoder, request)
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
