"""The server under load beside mlx_lm.server: clients with long prompts that begin alike.

    python -m lab.benchmarks.serve_load [MODEL] [--clients 8] [--shared 6000] [--own 2000]
        [--turns 3] [--tokens 48] [--blocks 2] [--llama PYTHON] [--only PROGRAM]...

Every client is an agent: a chat whose system message is the same for all, with a question of its
own, and further turns that append the answer and a short question. All clients of a block begin at
once; no block repeats a text. The servers take turns, block by block, and see the same texts. MODEL
is the demo's target by default: a copy in float32 whose configuration allows for long contexts.
PYTHON runs `llama_server.py`; without it, llama.cpp's server is left out.

Columns, over all requests of all blocks: seconds to the first token and tokens per second of one
answer after that (median and 99th percentile, of the slower end), tokens per second of all clients
together, CPU seconds of the server's process, and tokens of prompts that were read again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from lab.benchmarks.long_prompts import Asked, running, text_of
from tokalign.tokenizer.self_check import read_tokenizer

_PROGRAMS = "tokalign", "mlx_lm.server", "llama-server"
_CONTEXT = 32768


class Answer(NamedTuple):
    """Seconds to the first part and of all, the text, and its usage."""

    first: float
    seconds: float
    text: str
    usage: dict[str, Any]


def long_copy(model: Path, folder: Path) -> Path:
    """The model in float32 with room for long contexts."""
    shutil.copytree(model, folder)
    file = str(folder / "model.safetensors")
    weights = cast("dict[str, mx.array]", mx.load(file))
    mx.save_safetensors(file, {name: one.astype(mx.float32) for name, one in weights.items()})
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": _CONTEXT, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def ask(server: Asked, messages: list[dict[str, str]], tokens: int, ends: list[int]) -> Answer:
    """A streamed chat. ends: ids that must not come, so that every answer is as long."""
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    body |= {"logit_bias": {str(token): -100 for token in ends}}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    began, first, text = time.perf_counter(), None, ""
    usage: dict[str, Any] = {}
    with urllib.request.urlopen(request, timeout=7200) as lines:
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                text += choice["delta"].get("content") or ""
            if first is None and text:
                first = time.perf_counter() - began
    assert first is not None, "an empty answer"
    return Answer(first, time.perf_counter() - began, text, usage)


def block(server: Asked, system: str, own: list[str], given: Any, ends: list[int]) -> Any:
    """All clients at once. Returns: their answers, the seconds of all and of the CPU."""
    ready = Barrier(len(own))

    def client(question: str) -> list[Answer]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        ready.wait()
        answers = []
        for turn in range(given.turns):
            answers.append(ask(server, messages, given.tokens, ends))
            more = {"role": "user", "content": f"Dalej, po raz {turn}: {question[: 40 + turn]}"}
            messages += [{"role": "assistant", "content": answers[-1].text}, more]
        return answers

    began, cpu = time.perf_counter(), server.cpu
    with ThreadPoolExecutor(len(own)) as pool:
        answers = [one for of in pool.map(client, own) for one in of]
    return answers, time.perf_counter() - began, server.cpu - cpu


def texts(model: Path, number: int, given: Any) -> tuple[str, list[str]]:
    """The system message and the questions of a block."""
    shared = text_of(str(model), given.shared)
    each = text_of(str(model), given.own)
    of_block = f"Zadanie {number}. {shared}"
    return of_block, [f"Klient {number}-{n}: {each}" for n in range(given.clients)]


def shown(name: str, blocks: list[Any]) -> None:
    """Print a server's figures."""
    answers = [one for of, _, _ in blocks for one in of]
    first = np.array([one.first for one in answers])
    tokens = [one.usage.get("completion_tokens", 0) for one in answers]
    speed = np.array(
        [(n - 1) / (one.seconds - one.first) for n, one in zip(tokens, answers, strict=True)]
    )
    prompt = sum(one.usage["prompt_tokens"] for one in answers)
    details = [one.usage.get("prompt_tokens_details") or {} for one in answers]
    cached = sum(one.get("cached_tokens", 0) for one in details)
    seconds, cpu = (sum(column) for column in list(zip(*blocks, strict=True))[1:])
    print(
        f"{name}: first token {np.quantile(first, 0.5):.2f} s, p99 {np.quantile(first, 0.99):.2f}; "
        f"tokens/s of an answer {np.quantile(speed, 0.5):.1f}, p99 {np.quantile(speed, 0.01):.1f}; "
        f"all {sum(tokens) / seconds:.1f} tokens/s; {cpu:.1f} s of CPU; "
        f"{prompt - cached:,} of {prompt:,} prompt tokens read",
        flush=True,
    )


def main() -> None:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__)
    demo = Path(__file__).resolve().parents[2] / "demo" / "target"
    arguments.add_argument("model", type=Path, nargs="?", default=demo)
    for name, default in (("clients", 8), ("shared", 6000), ("own", 2000), ("turns", 3)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--tokens", type=int, default=48)
    arguments.add_argument("--blocks", type=int, default=2)
    arguments.add_argument("--llama", default="")
    arguments.add_argument("--only", action="append", choices=_PROGRAMS)
    given = arguments.parse_args()
    programs = given.only or _PROGRAMS[: 3 if given.llama else 2]
    with tempfile.TemporaryDirectory() as place:
        model = long_copy(given.model, Path(place) / "model")
        ends = sorted(read_tokenizer(model).vocabulary.roles.eos)
        found: dict[str, list[Any]] = {name: [] for name in programs}
        with ExitStack() as stack:
            servers = []
            for name in programs:
                own = ("--disk-cache-bytes", "0") if name == _PROGRAMS[0] else ()
                how = {"python": given.llama} if name == _PROGRAMS[2] else {}
                running_one = running(name, str(model), *own, **how)
                servers.append((name, stack.enter_context(running_one)))
            for number in range(given.blocks):
                for name, server in servers if number % 2 == 0 else servers[::-1]:
                    system, questions = texts(model, number, given)
                    found[name].append(block(server, system, questions, given, ends))
        for name, blocks in found.items():
            shown(name, blocks)
        texts_of = [[one.text for of in blocks for one in of[0]] for blocks in found.values()]
        differ = sum(len({*answers}) > 1 for answers in zip(*texts_of, strict=True))
        print("different answers:", differ)


if __name__ == "__main__":
    main()
