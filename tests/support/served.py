"""Servers on a free port, and requests to them: as bytes, and through OpenAI's client."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import mlx.core as mx
from places import DEMO
from processes import wait_for
from random_models import decoder_of, emitted

from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import CacheOptions, DraftingOptions, take
from tokalign.runtime.request import Request
from tokalign.serve import Settings
from tokalign.serve.server import Server
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

TOOLS_TEMPLATE = (
    "{% if tools %}{# <tool_call> tool_call.name #}{{ '<|im_start|>system\\n' }}"
    "{{ tools | tojson }}{{ '<|im_end|>\\n' }}{% endif %}"
)
"""What makes mlx-lm take a template for one whose tool calls are JSON."""

WEATHER: dict[str, Any] = {
    "name": "pogoda",
    "description": "Pogoda w mieście.",
    "parameters": {
        "type": "object",
        "properties": {"miasto": {"type": "string", "maxLength": 9}},
        "additionalProperties": False,
    },
}
"""A tool, and how the echo model is made to call it: by a user who dictates the call."""
CALL = '<tool_call>{"name": "pogoda", "arguments": {"miasto": "Łódź"}}</tool_call>'

KEY = "any"
"""The API key of the clients."""

LOOP = {"logit_bias": {"2": -100, "4": -100}}
"""Options with which no stop id ends an answer of the demo target."""


class Reply(NamedTuple):
    status: int
    headers: Any  # by any spelling of their names
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The objects of an event stream."""
        lines = [line for line in self.text.split("\n") if line.startswith("data: {")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def demo_settings(**more: Any) -> Settings:
    """The demo pair in float32, where a choice does not depend on how many rows are computed.

    more: of `Settings`, and `num_draft_tokens` of its drafting and any of its cache.
    """
    more["cache"] = take(CacheOptions, more)
    if "num_draft_tokens" in more:
        more["drafting"] = DraftingOptions(num_draft_tokens=more.pop("num_draft_tokens"))
    given: dict[str, Any] = {
        "model": str(DEMO / "target"),
        "draft_model": str(DEMO / "draft"),
        "dtype": "float32",
    }
    return Settings(**(given | more))


@contextmanager
def serving(settings: Settings) -> Iterator[Server]:
    """A server, which keeps no contexts on disk unless that is asked for."""
    if settings.disk_cache_bytes is None:
        settings = replace(settings, disk_cache_bytes=0)
    with Server(settings, port=0) as server:
        yield server


class At(NamedTuple):
    """A server of which no more is known than where it listens."""

    url: str


@contextmanager
def mlx_lms_server(*options: str, before: str = "") -> Iterator[At]:
    """A real `mlx_lm.server` in a process. before: what that runs first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = f"{before}\nfrom mlx_lm.server import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--port", str(port), "--log-level", "ERROR", *options],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(lambda: answers() or process.poll() is not None)
        assert process.poll() is None
        yield At(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def request(
    server: Server | At,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """body: an object to be sent as JSON, or bytes."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    address = urlsplit(server.url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=100)
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read().decode())
    finally:
        connection.close()


def chat(server: Server, text: str, **more: Any) -> Reply:
    """A chat of one message."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, **more}
    return request(server, "POST", "/v1/chat/completions", body)


def complete(server: Server | At, prompt: str, **more: Any) -> Reply:
    return request(server, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 24, **more})


def openai(server: Server) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def ask(server: Server, text: str = "Opisz krótko Wisłę.", **more: Any) -> Any:
    """A chat of one message through OpenAI's client."""
    given = {"model": "default_model", "messages": [{"role": "user", "content": text}]}
    return openai(server).chat.completions.create(**{**given, "max_tokens": 24, **more})


def text_of(chunks: list[Any]) -> str:
    """The text of a chat that was streamed."""
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def answered(server: Server, text: str, *, stream: bool, **more: Any) -> tuple[str, Any, str]:
    """The text of a chat of one message, the calls of tools in it and why it ended."""
    answer = ask(server, text, stream=stream, **more)
    if not stream:
        message, reason = answer.choices[0].message, answer.choices[0].finish_reason
        return message.content or "", message.tool_calls or [], reason
    chunks = [one for one in answer if one.choices]
    calls: list[Any] = []
    for delta in (d for one in chunks for d in one.choices[0].delta.tool_calls or ()):
        if delta.index == len(calls):
            calls.append(delta)
        else:
            calls[delta.index].function.arguments += delta.function.arguments
    assert {one.choices[0].finish_reason for one in chunks[:-1]} <= {None}
    return text_of(chunks), calls, chunks[-1].choices[0].finish_reason


def content(reply: Reply) -> str:
    """The text of a chat's answer."""
    assert reply.status == 200, reply.text
    return str(reply.json["choices"][0]["message"]["content"])


def ids_of(reply: Reply) -> list[int]:
    """The ids of an answer that came with log-probabilities."""
    assert reply.status == 200, reply.text
    return [token["id"] for token in reply.json["choices"][0]["logprobs"]["content"]]


def plain_ids(
    target: LanguageModel[Any],
    prompt: list[TargetId],
    tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
) -> list[int]:
    """What plain decoding gives, for servers to be compared with."""
    asked = Request(Prompt(target=prompt), max_tokens=tokens, sampler=sampling)
    return emitted(Generation(decoder_of((target, None)), asked))


def assert_both_ways(server: Server) -> None:
    """Some tokens came out of a batch, and some out of speculation."""
    text = request(server, "GET", "/metrics").text
    for decoding in ("batch", "speculation"):
        assert f'tokalign_output_tokens_total{{decoding="{decoding}"}}' in text


def metric(server: Server, name: str) -> float:
    """The current value of a metric without labels, or the sum over its labels."""
    lines = request(server, "GET", "/metrics").text.splitlines()
    found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def echo_folder(folder: Path, *, template: str | None = None, marks: Sequence[str] = ()) -> Path:
    """A model that answers with the user's message (`echo_model.py`), with the demo's tokenizer.

    template: instead of the demo's with tools. marks: tokens that the vocabulary gets besides.
    """
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("echo_model.py"), folder)
    shutil.copy(DEMO / "target" / "tokenizer.model", folder)
    demo = json.loads((DEMO / "target" / "config.json").read_text("utf-8"))
    words = json.loads((DEMO / "target" / "tokenizer.json").read_text("utf-8"))
    for mark in marks:
        like = words["added_tokens"][-1]
        words["added_tokens"].append({**like, "id": demo["vocab_size"], "content": mark})
        demo["vocab_size"] += 1
    (folder / "tokenizer.json").write_text(json.dumps(words), "utf-8")
    config = json.loads((DEMO / "target" / "tokenizer_config.json").read_text("utf-8"))
    of_demo = config["chat_template"].replace("{{ bos_token }}", "")
    config["chat_template"] = template or TOOLS_TEMPLATE + of_demo
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    tokenizer: Tokenizer[Any] = read_tokenizer(DEMO / "target")
    roles = {"user_header": "user\n", "assistant_header": "assistant\n"}
    specials = tokenizer.vocabulary.special_ids
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "echo",
                "model_file": "echo_model.py",
                "vocab_size": demo["vocab_size"],
                "max_position_embeddings": 2048,
                "eos_token_id": demo["eos_token_id"],
                "turn_start": specials["<|im_start|>"],
                "turn_end": specials["<|im_end|>"],
                **{name: len(tokenizer.encode(text)) for name, text in roles.items()},
            }
        ),
        "utf-8",
    )
    mx.save_safetensors(str(folder / "model.safetensors"), {"nothing": mx.zeros((1,))})
    return folder
