"""Requests that come and go at any time: each answer is the target's own, id for id."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.client import HTTPConnection
from itertools import pairwise
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest
from mlx_lm.sample_utils import make_logits_processors
from places import DEMO
from processes import wait_for
from served import (
    LOOP,
    assert_both_ways,
    chat,
    complete,
    content,
    demo_settings,
    echo_folder,
    ids_of,
    metric,
    plain_ids,
    serving,
)

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.contexts import Contexts
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.serve import Settings
from tokalign.serve.server import Server

WORDS = ("Wisła jest", "W roku 1920", "Kraków, miasto", "Rzeka Odra płynie", "Zima w górach")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 5},
    "penalized": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
}
Plain = Callable[[str, str, int], list[int]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings()) as running:
        yield running


@pytest.fixture(scope="module")
def plain(server: Server) -> Plain:
    """The ids of plain decoding for a kind of request, a prompt and a number of tokens."""
    target: LanguageModel[Any] = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    encode = server.scheduler.models.loaded.prompts.library.encode

    def emit(kind: str, prompt: str, tokens: int) -> list[int]:
        options = dict(KINDS[kind])
        penalties = {n: options.pop(n) for n in list(options) if n.endswith("penalty")}
        sampling = Sampling(**options, processors=make_logits_processors(**penalties))
        return plain_ids(target, encode(prompt), tokens, sampling)

    return cache(emit)


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_staggered_requests_get_what_plain_decoding_gives(
    server: Server, plain: Plain, seed: int
) -> None:
    """Prompts of any length and kind move between speculation and batch several times."""
    chance = random.Random(seed)
    asked = [
        (chance.choice(list(KINDS)), f"{chance.choice(WORDS)} {number}", chance.randint(1, 90))
        for number in range(12)
    ]
    waits = [chance.uniform(0, 1.5) for _ in asked]

    def ask(number: int) -> list[int]:
        time.sleep(waits[number])
        kind, prompt, tokens = asked[number]
        return ids_of(complete(server, prompt, max_tokens=tokens, logprobs=True, **KINDS[kind]))

    both = metric(server, "tokalign_output_tokens_total")
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(ask, range(len(asked))))
    assert found == [plain(*one) for one in asked]
    assert metric(server, "tokalign_output_tokens_total") - both == sum(map(len, found))
    assert_both_ways(server)


def test_kept_contexts_change_no_answer(server: Server, plain: Plain) -> None:
    prompt = "Wisła jest najdłuższą rzeką"
    for tokens in (20, 10, 20):
        for kind in KINDS:
            reply = complete(server, prompt, max_tokens=tokens, logprobs=True, **KINDS[kind])
            assert ids_of(reply) == plain(kind, prompt, tokens)
    longer = f"{prompt} i płynie"
    reply = complete(server, longer, max_tokens=20, logprobs=True)
    assert ids_of(reply) == plain("greedy", longer, 20)
    assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 5


def start(server: Server, *, stream: bool = False) -> socket.socket:
    """A connection that has asked for an endless answer and does not read it."""
    address = urlsplit(server.url)
    client = socket.create_connection((address.hostname, address.port), timeout=60)
    data = json.dumps({**ENDLESS, "stream": stream}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    client.sendall(head.encode() + data)
    return client


def running(server: Server) -> int:
    return int(metric(server, "tokalign_running_requests"))


ENDLESS: dict[str, Any] = {"prompt": "Wisła", "max_tokens": 1900, **LOOP}
"""An answer that no stop id ends."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("others", [0, 2])
def test_a_client_that_leaves_ends_its_answer(server: Server, stream: bool, others: int) -> None:
    gone = metric(server, "tokalign_disconnected_total")
    clients = [start(server, stream=stream) for _ in range(1 + others)]
    wait_for(lambda: running(server) == 1 + others)
    for client in clients:
        client.close()
    wait_for(lambda: running(server) == 0)
    assert metric(server, "tokalign_disconnected_total") == gone + 1 + others
    assert complete(server, "Wisła", max_tokens=3).status == 200


def test_an_answer_ends_at_its_time_limit() -> None:
    with serving(demo_settings(draft_model=None, answer_timeout=0.5)) as hasty:
        reply = complete(hasty, **ENDLESS)
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert 0 < reply.json["usage"]["completion_tokens"] < 1900


def test_one_request_more_than_may_wait_is_refused() -> None:
    settings = demo_settings(
        draft_model=None, decode_concurrency=1, prompt_concurrency=1, max_waiting=1
    )
    with serving(settings) as busy:
        clients = [start(busy)]
        wait_for(lambda: running(busy) == 1)
        clients.append(start(busy))
        wait_for(lambda: metric(busy, "tokalign_queue_length") == 1)
        reply = complete(busy, "Wisła", max_tokens=1)
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert reply.json["error"]["type"] == "rate_limit_error"
        for client in clients:
            client.close()
        wait_for(lambda: metric(busy, "tokalign_queue_length") == 0 and running(busy) == 0)
        assert complete(busy, "Wisła", max_tokens=1).status == 200


def break_device(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_broken: Callable[[], bool]
) -> None:
    """Have every pass of the target fail from some time on."""
    model = type(server.scheduler.models.loaded.decoder.target.model)
    call = model.__call__

    def fail(*args: Any, **named: Any) -> Any:
        if is_broken():
            raise RuntimeError("the device is lost")
        return call(*args, **named)

    monkeypatch.setattr(model, "__call__", fail)


@pytest.mark.parametrize("together", [1, 3])
def test_a_failing_model_is_an_error_and_no_end(
    alone: Server, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    ready = Event()
    break_device(alone, monkeypatch, ready.is_set)
    with ThreadPoolExecutor(together) as pool:
        asked = [
            pool.submit(complete, alone, f"Wisła {i}", max_tokens=900) for i in range(together)
        ]
        wait_for(lambda: running(alone) == together)
        ready.set()
        replies = [one.result() for one in asked]
    for reply in replies:
        assert reply.status == 500
        assert reply.json["error"]["type"] == "server_error"
        assert "the device is lost" in reply.json["error"]["message"]
    monkeypatch.undo()
    assert complete(alone, "Wisła", max_tokens=3).status == 200


def test_an_answer_of_which_nothing_can_be_kept_is_whole(
    alone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Contexts, "keep", lambda *_, **__: 1 // 0)
    assert complete(alone, "Wisła", max_tokens=3).status == 200
    monkeypatch.undo()
    assert complete(alone, "Wisła", max_tokens=3).status == 200


@pytest.mark.parametrize("more", [{}, {"kv_bits": 8, "quantized_kv_start": 0}])
def test_contexts_are_never_mixed_up(tmp_path: Any, more: dict[str, Any]) -> None:
    """Every answer is the marker of its own request, also where models cannot be batched."""
    folder = echo_folder(tmp_path / "echo")
    settings = Settings(model=str(folder), trust_remote_code=True, dtype="float32")
    if more:
        settings = demo_settings(**more)
    chance = random.Random(1)
    markers = [f"znak {chance.randrange(10**9)} {'i ' * chance.randrange(20)}" for _ in range(16)]
    with serving(settings) as server:
        options = {"max_tokens": 60 if not more else 6}
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda m: content(chat(server, m, **options)), markers))
        alone = markers if not more else [content(chat(server, m, **options)) for m in markers]
    assert [text.strip() for text in found] == [text.strip() for text in alone]


def test_a_long_prompt_is_read_between_the_rounds_of_others() -> None:
    """Its client is told how far it is, and the answer of another one goes on meanwhile."""
    lines: list[tuple[str, bytes]] = []

    def read(name: str, body: dict[str, Any], most: int) -> None:
        address = urlsplit(server.url)
        client = HTTPConnection(str(address.hostname), address.port, timeout=60)
        client.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
        response = client.getresponse()
        for _ in range(most):
            if not (line := response.readline()):
                return
            if line.strip():
                lines.append((name, line))
        client.close()

    with serving(demo_settings(prefill_step_size=16)) as server, ThreadPoolExecutor(2) as pool:
        other = pool.submit(read, "other", ENDLESS, 1000)
        wait_for(lambda: len(lines) > 10)
        read("long", {"prompt": "Wisła jest najdłuższą rzeką. " * 30, "max_tokens": 2}, 1000)
        other.cancel()
    steps = [at for at, (name, line) in enumerate(lines) if line.startswith(b": keepalive ")]
    assert len(steps) > 10
    assert {lines[at][0] for at in steps} == {"long"}
    told = [lines[at][1].decode().split()[-1].split("/") for at in steps]
    read_ids = [int(done) for done, _ in told]
    assert read_ids == sorted(read_ids)
    assert max(b - a for a, b in pairwise(read_ids)) <= 16
    between = sum(name == "other" for name, _ in lines[steps[0] : steps[-1]])
    assert between >= len(steps) // 2
