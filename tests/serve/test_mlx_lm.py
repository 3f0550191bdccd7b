"""This server and mlx-lm's own say the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from places import DEMO
from served import At, demo_settings, mlx_lms_server, request, serving

from tokalign.serve.server import Server
from tokalign.storage import POLISH, prompts

IM_END, END_OF_TEXT = 4, 2

PROMPTS = (prompts(POLISH) / "questions.txt").read_text("utf-8").splitlines()


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
def theirs(folder: Path) -> Iterator[At]:
    with mlx_lms_server("--model", str(folder)) as running:
        yield running


def both(theirs: At, ours: Server, path: str, body: Any) -> tuple[Any, Any]:
    replies = [request(server, "POST", path, body) for server in (theirs, ours)]
    assert {reply.status for reply in replies} == {200}
    return replies[0].json, replies[1].json


def test_twenty_requests_are_answered_as_by_mlx_lms_server(theirs: At, folder: Path) -> None:
    chats = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
        for text in PROMPTS
    ]
    texts = [("/v1/completions", {"prompt": text}) for text in PROMPTS]
    options = ({}, {"repetition_penalty": 1.3}, {"logit_bias": {"4": -100}}, {"max_tokens": 9})
    with serving(demo_settings(model=str(folder))) as server:
        for number, (path, body) in enumerate([*chats, *texts]):
            body = {"max_tokens": 48, **body, **options[number % len(options)]}
            expected, found = both(theirs, server, path, body)
            assert found["choices"] == expected["choices"], body
            for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert found["usage"][count] == expected["usage"][count]


@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
def test_both_servers_end_an_answer_at_the_same_ids(theirs: At, folder: Path, end: int) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 5, "logit_bias": {str(end): 100}}
    with serving(demo_settings(model=str(folder))) as server:
        expected, found = both(theirs, server, "/v1/completions", body)
    assert found["choices"] == expected["choices"]
    assert found["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
    assert found["choices"][0]["finish_reason"] == ("stop" if end == IM_END else "length")
