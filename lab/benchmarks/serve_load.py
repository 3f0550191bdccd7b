"""Many clients at once, some of which leave: `tokalign serve` beside `mlx_lm.server`.

    python -m lab.benchmarks.serve_load [--target MODEL] [--draft MODEL] [--requests 500] \
        [--clients 8]

Both servers run in processes of their own, with the same weights in float32, and get the same
requests in blocks that take turns, so that other programs affect both alike. Every third client
leaves after the first part of its answer. A request's prompt has a number of its own, its marker.
Afterwards some requests that were answered are asked again, each alone: with greedy decoding the
answer has to be the same, or contexts were mixed up. (With an echo model, whose answer is its
prompt, the tests compare the marker itself.)

Memory is the resident set of the process after warming up and after the last request. `clients`
of 1 shows what speculation brings, more of them what batching brings.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import click
import mlx.core as mx
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
_PATH = click.Path(path_type=Path, exists=True, file_okay=False)
_START = 120.0
"""Seconds in which a server has to be ready."""

SUBJECTS = ("Wisła", "Odra", "Warta", "Bug", "Narew", "San", "Noteć", "Pilica")


@dataclass
class Contender:
    """One server, and what its clients saw.

    seconds: of the blocks. latencies: seconds of whole answers. firsts: seconds to the first part.
    """

    name: str
    port: int
    process: subprocess.Popen[bytes]
    seconds: float = 0.0
    tokens: int = 0
    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    answers: dict[int, str] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Resident bytes of the process."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.exists():
            (line,) = [x for x in status.read_text().splitlines() if x.startswith("VmRSS:")]
            return int(line.split()[1]) << 10
        listed = ["ps", "-o", "rss=", "-p", str(self.process.pid)]
        return int(subprocess.run(listed, capture_output=True, check=True, text=True).stdout) << 10


@dataclass(frozen=True)
class Request:
    """A prompt with its marker, a length, and whether the client stays until the end."""

    marker: int
    prompt: str
    max_tokens: int
    stays: bool

    @classmethod
    def number(cls, index: int, tokens: int) -> Request:
        """Request `index`, always the same one."""
        chance = random.Random(index)
        marker = 10_000 + index
        prompt = f"Notatka {marker}. {chance.choice(SUBJECTS)} w roku {chance.randint(1000, 2000)}"
        return cls(marker, prompt, chance.randint(tokens // 4, tokens), index % 3 != 2)


def ask(server: Contender, request: Request) -> str | None:
    """Stream one answer. Returns: its text; None if the client left or was refused."""
    body = {
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        if response.status != 200:
            server.outcomes[f"status {response.status}"] += 1
            return None
        parts: list[str] = []
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[6:])
            if "error" in event:
                server.outcomes["error in a stream"] += 1
                return None
            if not parts:
                server.firsts.append(time.perf_counter() - began)
            parts += [choice["text"] for choice in event["choices"]]
            if not request.stays:
                server.outcomes["left"] += 1
                return None
            if event.get("usage"):
                server.tokens += event["usage"]["completion_tokens"]
        server.latencies.append(time.perf_counter() - began)
        server.outcomes["answered"] += 1
        return "".join(parts)
    except (OSError, ValueError) as error:
        server.outcomes[type(error).__name__] += 1
        return None
    finally:
        connection.close()


def run_block(server: Contender, block: tuple[Request, ...], clients: int) -> None:
    """Some requests by so many clients at once."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(lambda request: ask(server, request), block))
    server.seconds += time.perf_counter() - began
    for request, text in zip(block, texts, strict=True):
        if text is not None:
            server.answers[request.marker] = text


@contextmanager
def started(name: str, *command: str) -> Iterator[Contender]:
    """A server as a process of its own, from when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [sys.executable, "-m", *command, "--port", str(port)]
    with subprocess.Popen(
        run, stderr=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    ) as process:
        try:
            deadline = time.monotonic() + _START
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise click.ClickException(f"{name} did not start: {' '.join(run)}")
                time.sleep(0.05)
            yield Contender(name, port, process)
        finally:
            process.terminate()
            process.wait(60)


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def in_float32(model: Path, folder: Path) -> Path:
    """A copy of a model's folder with its weights in float32, for both servers."""
    copy = folder / model.name
    shutil.copytree(model, copy)
    for file in copy.glob("*.safetensors"):
        loaded: Any = mx.load(str(file))
        weights = {name: weight.astype(mx.float32) for name, weight in loaded.items()}
        mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    return copy


@click.command()
@click.option("--target", type=_PATH, default=ROOT / "demo" / "target")
@click.option("--draft", type=_PATH, default=ROOT / "demo" / "draft")
@click.option("--requests", "count", type=click.IntRange(min=1), default=500)
@click.option("--clients", type=click.IntRange(min=1), default=8)
@click.option("--max-tokens", "tokens", type=click.IntRange(min=4), default=64)
@click.option("--block", "block_size", type=click.IntRange(min=1), default=50)
@click.option("--again", type=click.IntRange(min=0), default=40, help="Asked again, alone.")
@click.option("--warm-up", type=click.IntRange(min=0), default=100, help="Not measured.")
def main(
    target: Path,
    draft: Path,
    count: int,
    clients: int,
    tokens: int,
    block_size: int,
    again: int,
    warm_up: int,
) -> None:
    """Compare the two servers and print a table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        model = str(in_float32(target, folder))
        ours = ("tokalign", "serve", "--draft", str(draft), "--dtype", "float32", "--quiet")
        servers = [
            stack.enter_context(started("tokalign serve", *ours, "--model", model)),
            stack.enter_context(started("mlx_lm.server", "mlx_lm", "server", "--model", model)),
        ]
        for server in servers:
            warm = tuple(Request.number(100_000 + index, tokens) for index in range(warm_up))
            run_block(server, warm, clients)
            server.seconds, server.tokens = 0.0, 0
            server.latencies, server.firsts = [], []
            server.outcomes, server.answers = Counter(), {}
        before = [server.memory for server in servers]
        asked = tuple(Request.number(index, tokens) for index in range(count))
        blocks = [asked[begin : begin + block_size] for begin in range(0, count, block_size)]
        for turn, block in enumerate(blocks):
            for server in servers[:: 1 if turn % 2 == 0 else -1]:
                run_block(server, block, clients)
        after = [server.memory for server in servers]
        rows = [
            figures(server, began, ended, alone_again(server, count, tokens, again))
            for server, began, ended in zip(servers, before, after, strict=True)
        ]
        differ = sum(
            servers[1].answers.get(marker, text) != text
            for marker, text in servers[0].answers.items()
        )
    _print(rows)
    Console().print(f"answers in which the two servers differ: {differ}")
    if any(row["asked again alone, different"] for row in rows):
        raise click.ClickException("an answer depends on who else was there")


def alone_again(server: Contender, count: int, tokens: int, again: int) -> int:
    """How many answers differ from what the same request gives alone."""
    requests = [Request.number(index, tokens) for index in range(count)]
    answered = [one for one in requests if one.marker in server.answers]
    sample = random.Random(0).sample(answered, min(again, len(answered)))
    alone = Contender(server.name, server.port, server.process)
    return sum(ask(alone, one) != server.answers[one.marker] for one in sample)


def figures(server: Contender, before: int, after: int, different: int) -> dict[str, Any]:
    """What is printed for one server."""
    outcomes = dict(server.outcomes)
    return {
        "server": server.name,
        "answered": outcomes.pop("answered", 0),
        "left": outcomes.pop("left", 0),
        "errors": outcomes or 0,
        "asked again alone, different": different,
        "seconds per answer, quartiles": _quartiles(server.latencies),
        "seconds to first part, quartiles": _quartiles(server.firsts),
        "tokens per second": round(server.tokens / server.seconds, 1),
        "memory before, MB": round(before / 1e6),
        "memory after, MB": round(after / 1e6),
    }


def _quartiles(values: list[float]) -> str:
    if len(values) < 2:
        return "-"
    return " ".join(f"{value:.3f}" for value in quantiles(values, n=4))


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("", *[row["server"] for row in rows])
    for name in list(rows[0])[1:]:
        table.add_row(name, *[str(row[name]) for row in rows])
    Console().print(table)


if __name__ == "__main__":
    main()
