"""How long a long prompt takes to its first token: beside mlx_lm.server, and after a restart.

    python -m lab.benchmarks.long_prompts MODEL --ids 8192 --repeats 3
    python -m lab.benchmarks.long_prompts MODEL --ids 8192 --restart

Each figure is of a server process that has just started, with the same text and greedy decoding.
CPU seconds are those of the server's process while it answers: on a machine where others work, they
tell more than the clock. With `--restart` the first server is killed (SIGKILL) once its context is
on disk, and a second one is asked the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tokalign.runtime.mlx.context_file import SUFFIX, read_header
from tokalign.storage import contexts_folder
from tokalign.tokenizer.self_check import read_tokenizer

_TOKENS = 8
_OURS, _THEIRS = "tokalign", "mlx_lm.server"
_PROGRAMS = {
    _OURS: ["-m", "tokalign", "serve"],
    _THEIRS: ["-c", "from mlx_lm.server import main; main()"],
    "llama-server": [str(Path(__file__).with_name("llama_server.py"))],
}


class Answer(NamedTuple):
    """Seconds to the first token by the clock and of the CPU, and the text."""

    first: float
    cpu: float
    text: str


class Asked(NamedTuple):
    """A server that runs."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def answer(self, prompt: str) -> Answer:
        body = {"prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "stream": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        began, cpu, first, text = time.perf_counter(), self.cpu, None, ""
        with urllib.request.urlopen(request, timeout=7200) as lines:
            for line in lines:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices")
                    text += choices[0]["text"] if choices else ""
                    if first is None and text:
                        first = time.perf_counter() - began, self.cpu - cpu
        assert first is not None, "an empty answer"
        return Answer(*first, text)


@contextmanager
def running(
    program: str, model: str, *options: str, python: str = sys.executable
) -> Iterator[Asked]:
    """A server with this model, which answers already. python: what runs it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [python, *_PROGRAMS[program], "--model", model, "--port", port, *options]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"{url}/health", timeout=10):
                        break
                except OSError:
                    assert process.poll() is None
                    time.sleep(0.2)
            asked = Asked(process, url)
            asked.answer("Ala")  # mlx_lm.server loads the model with the first request
            yield asked
        finally:
            process.send_signal(signal.SIGKILL)


def text_of(model: str, ids: int) -> str:
    """A text of so many ids or a few more."""
    encode, text, number = read_tokenizer(Path(model)).encode, "", 0
    while len(encode(text)) < ids:
        more = (f"{n} plus {n * n % 97} to {n + n * n % 97}. " for n in range(number, number + 50))
        text, number = text + "".join(more), number + 50
    return text


def beside_mlx_lm(model: str, prompt: str, repeats: int, options: list[str]) -> None:
    """Both servers in turns."""
    ratios = []
    for _ in range(repeats):
        found = {}
        for program in (_OURS, _THEIRS):
            own = ["--disk-cache-bytes", "0", *options] if program == _OURS else []
            with running(program, model, *own) as server:
                found[program] = server.answer(prompt)
            print(program, f"{found[program].first:.2f} s, {found[program].cpu:.2f} s of CPU")
        ours, theirs = found[_OURS], found[_THEIRS]
        ratios.append((ours.first / theirs.first, ours.cpu / theirs.cpu))
        print("equal text:", ours.text == theirs.text, flush=True)
    clock, cpu = (median(column) for column in zip(*ratios, strict=True))
    print(f"first token, tokalign / mlx_lm.server: {clock:.3f} by the clock, {cpu:.3f} of CPU")


def kept_files() -> list[Path]:
    """The files of contexts on disk."""
    return [*contexts_folder().glob(f"*/*/[!.]*{SUFFIX}")]


def after_restart(model: str, prompt: str, options: list[str]) -> None:
    """The same prompt before and after a kill."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOKALIGN_CACHE"] = folder
        with running(_OURS, model, *options) as server:
            first = server.answer(prompt)
            deadline = time.monotonic() + 120
            while not kept_files() and time.monotonic() < deadline:
                time.sleep(0.5)
        with running(_OURS, model, *options) as server:
            second = server.answer(prompt)
        kept = kept_files()
        size = sum(file.stat().st_size for file in kept)
        tokens = sum(len(node.ids) - node.begin for node in map(read_header, kept))
    for name, answer in (("first", first), ("after a kill", second)):
        print(f"{name}: {answer.first:.2f} s, {answer.cpu:.2f} s of CPU")
    print(f"ratio 1/{first.first / second.first:.0f}, 1/{first.cpu / second.cpu:.0f} of CPU")
    print(f"equal text: {first.text == second.text}; {size:,} bytes for {tokens:,} ids")


def main() -> None:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model")
    arguments.add_argument("--ids", type=int, default=1024)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--restart", action="store_true")
    given, options = arguments.parse_known_args()
    prompt = text_of(given.model, given.ids)
    if given.restart:
        after_restart(given.model, prompt, options)
    else:
        beside_mlx_lm(given.model, prompt, given.repeats, options)


if __name__ == "__main__":
    main()
