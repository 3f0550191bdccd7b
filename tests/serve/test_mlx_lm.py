"""What is used of mlx-lm's server is there, and both servers say the same."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.server
import pytest
from mlx_lm.generate import BatchGenerator, TextStateMachine
from mlx_lm.models.cache import LRUPromptCache
from places import DEMO
from processes import wait_for
from served import demo_settings, request, serving

USED = {
    mlx_lm.server: {
        "CompletionRequest",
        "GenerationArguments",
        "LogitsProcessorArguments",
        "ModelDescription",
        "ModelProvider",
        "Response",
        "ResponseGenerator",
        "SamplingArguments",
        "_format_top_logprobs",
        "_make_logits_processors",
        "get_system_fingerprint",
        "make_stop_sequences",
    },
    mlx_lm.server.ResponseGenerator: {
        "_generate",
        "_make_state_machine",
        "_next_request",
        "_run_generate",
        "_tokenize",
        "generate",
        "generation_available",
        "is_healthy",
        "join",
        "stop_and_join",
    },
    mlx_lm.server.ModelProvider: {"_load", "load_default", "reset"},
    BatchGenerator: {
        "close",
        "extract_cache",
        "insert_segments",
        "next",
        "prompt_cache_nbytes",
        "remove",
    },
    TextStateMachine: {"flush", "make_state", "split"},
    LRUPromptCache: {"fetch_nearest_cache", "insert_cache", "nbytes", "trim_to"},
}


@pytest.mark.parametrize("owner", USED, ids=lambda owner: owner.__name__)
def test_the_names_that_are_used_are_there(owner: Any) -> None:
    assert {name for name in USED[owner] if not hasattr(owner, name)} == set()


def test_the_values_that_are_exchanged_have_the_fields_that_are_used() -> None:
    server = mlx_lm.server
    for kind, names in (
        (
            server.GenerationArguments,
            "model sampling logits stop_words max_tokens num_draft_tokens logprobs top_logprobs "
            "seed chat_template_kwargs",
        ),
        (server.ModelDescription, "model draft adapter"),
        (
            server.SamplingArguments,
            "temperature top_p top_k min_p xtc_probability xtc_threshold",
        ),
        (
            server.LogitsProcessorArguments,
            "logit_bias repetition_penalty repetition_context_size presence_penalty "
            "presence_context_size frequency_penalty frequency_context_size",
        ),
        (server.CompletionRequest, "request_type prompt messages tools role_mapping"),
        (server.Response, "text token logprob finish_reason top_tokens"),
    ):
        assert [field.name for field in fields(kind)] == names.split()


IM_END, END_OF_TEXT = 4, 2

PROMPTS = (
    "Opisz krótko Wisłę.",
    "Ile dni ma luty?",
    "Napisz zdanie o zimie.",
    "Co to jest gęś?",
    "Podaj trzy miasta w Polsce.",
    "Wymień kolory tęczy.",
    "Kto napisał list?",
    "Jak zrobić zupę?",
    "Dlaczego niebo jest niebieskie?",
    "Opowiedz bajkę o lisie.",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target in float32. `</s>` ends a text, says the tokenizer; its files do not."""
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
def mlx_lms(folder: Path) -> Iterator[int]:
    """The port of a real `mlx_lm.server` with this model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder), "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(run, stderr=log, env=environment)
    try:
        wait_for(lambda: _answers(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def post(port: int, path: str, body: Any) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=100)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    found = json.loads(response.read())
    connection.close()
    return found


@pytest.mark.slow
def test_twenty_requests_are_answered_as_by_mlx_lms_server(mlx_lms: int, folder: Path) -> None:
    chats = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
        for text in PROMPTS
    ]
    texts = [("/v1/completions", {"prompt": text}) for text in PROMPTS]
    options = ({}, {"repetition_penalty": 1.3}, {"logit_bias": {"4": -100}}, {"max_tokens": 9})
    with serving(demo_settings(model=str(folder))) as server:
        for number, (path, body) in enumerate([*chats, *texts]):
            body = {"max_tokens": 48, **body, **options[number % len(options)]}
            theirs, ours = post(mlx_lms, path, body), request(server, "POST", path, body).json
            assert ours["choices"] == theirs["choices"], body
            for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert ours["usage"][count] == theirs["usage"][count]


@pytest.mark.slow
@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
def test_both_servers_end_an_answer_at_the_same_ids(mlx_lms: int, folder: Path, end: int) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 5, "logit_bias": {str(end): 100}}
    with serving(demo_settings(model=str(folder))) as server:
        theirs = post(mlx_lms, "/v1/completions", body)
        ours = request(server, "POST", "/v1/completions", body).json
    assert ours["choices"] == theirs["choices"]
    assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
    assert ours["choices"][0]["finish_reason"] == ("stop" if end == IM_END else "length")
