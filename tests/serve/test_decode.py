"""The server and `decode` say the same: prompts, ids, texts and ends are of one text layer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_logits_processors
from mlx_lm.utils import load_tokenizer
from places import DEMO
from random_models import decoder_of
from served import LOOP, complete, demo_settings, echo_folder, request, serving

from tokalign.runtime.chat import Prompt, encode_prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.request import Request
from tokalign.serve import Settings
from tokalign.serve.models import _prepare_grammars
from tokalign.serve.server import Server
from tokalign.storage import POLISH, prompts
from tokalign.tokenizer.vocabulary import TargetId

IM_END, END_OF_TEXT, BOS = 4, 2, 1

PROMPTS = (prompts(POLISH) / "questions.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target in float32. `</s>` ends a text, says the tokenizer; its config does not."""
    folder = tmp_path_factory.mktemp("models") / "target"
    shutil.copytree(DEMO / "target", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["eos_token_id"] == [IM_END, END_OF_TEXT]
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": IM_END}), "utf-8")
    weights = mx.load(str(folder / "model.safetensors"))
    wide = {name: weight.astype(mx.float32) for name, weight in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), wide, metadata={"format": "mlx"})
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> LanguageModel[Any]:
    return LanguageModel.from_folder(folder)


@pytest.fixture(scope="module")
def served(folder: Path) -> Any:
    with serving(demo_settings(model=str(folder))) as server:
        yield server


def decoded(
    target: LanguageModel[Any], prompt: Prompt, max_tokens: int, **penalties: Any
) -> tuple[str, str, int]:
    """Text, reason and number of ids of `decode`."""
    sampling = Sampling(processors=make_logits_processors(**penalties))
    asked = Request(prompt, max_tokens=max_tokens, sampler=sampling)
    generation = Generation(decoder_of((target, None)), asked)
    pieces = list(generation)
    text = "".join(piece.text for piece in pieces) + generation.rest()
    return text, str(pieces[-1].ends), len(pieces)


def answered(server: Server, path: str, body: Any) -> tuple[str, str, int]:
    reply = request(server, "POST", path, body)
    assert reply.status == 200, reply.text
    (choice,) = reply.json["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return text, choice["finish_reason"], reply.json["usage"]["completion_tokens"]


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"logit_bias": {IM_END: -100}},
)


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_chats_and_completions_are_answered_as_by_decode(
    served: Server, target: LanguageModel[Any], number: int
) -> None:
    text, options = PROMPTS[number], OPTIONS[number % len(OPTIONS)]
    decoder: Decoder = decoder_of((target, None))
    for path, body, prompt in (
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": text}]},
            decoder.prompt(text),
        ),
        ("/v1/completions", {"prompt": text}, decoder.prompt(text, use_template=False)),
    ):
        expected = decoded(target, prompt, 32, **options)
        assert answered(served, path, {"max_tokens": 32, **body, **options}) == expected


@pytest.mark.parametrize("marks", [(), ("<think>", "</think>")])
def test_a_template_is_told_to_think_as_by_mlx_lm(tmp_path: Path, marks: tuple[str, ...]) -> None:
    template = "{{ enable_thinking }}<|im_start|>{{ messages[0].content }}<|im_end|>"
    folder = echo_folder(tmp_path / "echo", template=template, marks=marks)
    messages = [{"role": "user", "content": "Wisła"}]
    with serving(Settings(model=str(folder), trust_remote_code=True)) as server:
        for thinks in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            expected = load_tokenizer(folder).apply_chat_template(messages, **thinks)
            body = {"messages": messages, "max_tokens": 1, "chat_template_kwargs": thinks}
            answer = request(server, "POST", "/v1/chat/completions", body)
            assert answer.json["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
def test_the_server_and_decode_end_at_the_same_ids(
    served: Server, target: LanguageModel[Any], end: int
) -> None:
    bias = {"logit_bias": {end: 100}}
    prompt = Prompt(target=encode_prompt(target.tokenizer, PROMPTS[0]))
    body = {"prompt": PROMPTS[0], "max_tokens": 5, **bias}
    assert answered(served, "/v1/completions", body) == decoded(target, prompt, 5, **bias)
    assert answered(served, "/v1/completions", body) == ("", "stop", 1)


def test_a_completion_continues_the_prompt_with_its_first_space(served: Server) -> None:
    reply = complete(served, "Wisła jest", guided_choice=[" rzeką"], logprobs=1)
    (choice,) = reply.json["choices"]
    assert choice["text"] == " rzeką"
    assert "".join(choice["logprobs"]["tokens"]) == " rzeką<|im_end|>"


def test_a_prompt_that_begins_with_bos_gets_no_other_one(
    served: Server, target: LanguageModel[Any]
) -> None:
    (bos,) = target.tokenizer.spec.opening
    spelled = target.tokenizer.spec.specials[bos]
    for prompt in ("Wisła jest", f"{spelled}Wisła jest"):
        usage = complete(served, prompt, max_tokens=1).json["usage"]
        assert usage["prompt_tokens"] == len(encode_prompt(target.tokenizer, "Wisła jest"))


def test_an_answer_without_a_limit_goes_on_to_the_end_of_the_context(served: Server) -> None:
    long = "Wisła " * 640
    body = {"prompt": long, "logit_bias": LOOP["logit_bias"]}
    reply = request(served, "POST", "/v1/completions", body).json
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == served.scheduler.models.loaded.context_length


def test_ids_end_an_answer_as_vllm_takes_them(served: Any) -> None:
    """Whatever a model's end is: benchmarks ask for answers of a length."""

    def end(**more: Any) -> tuple[str, int]:
        reply = complete(served, "Wisła", max_tokens=6, **more).json
        return reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]

    to_end, to_other = {"logit_bias": {str(IM_END): 100}}, {"logit_bias": {"300": 100}}
    assert end(**to_end) == ("stop", 1)
    assert end(**to_end, ignore_eos=True) == ("length", 6)
    assert end(**to_other) == ("length", 6)
    assert end(**to_other, stop_token_ids=[300]) == ("stop", 1)
    assert end(**to_other, stop_token_ids=[300], ignore_eos=True) == ("stop", 1)
    refused = complete(served, "Wisła", ignore_eos=True, guided_regex="[a-z]+")
    assert refused.status == 400
    assert "ignore_eos" in refused.json["error"]["message"]


def test_a_model_that_has_no_id_to_end_a_text_is_served(demo_pair: tuple[Any, Any]) -> None:
    """As where its embedding has fewer rows than its tokenizer has ids."""
    target = replace(demo_pair[0], stop_ids=frozenset({TargetId(99_999)}))
    _prepare_grammars(decoder_of((target, None)))
