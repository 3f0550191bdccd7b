"""`tokalign serve` as a process: flags, start, end and exit codes."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from command_lines import run, start
from places import DEMO
from processes import HUNG, NOT_NOHUP

from tokalign.cli.command import SIZE
from tokalign.cli.serve import command

TARGET = ("--target", str(DEMO / "target"), "--dtype", "float32")


def test_every_flag_of_mlx_lms_server_is_there() -> None:
    from mlx_lm.server import main

    theirs = set(re.findall(r'"(--[a-z-]+)",', inspect.getsource(main)))
    ours = {option for parameter in command.params for option in parameter.opts}
    assert len(theirs) > 20
    # Tensor and pipeline parallelism over several machines are not served.
    assert theirs - ours == {"--pipeline"}
    assert {"--target", "--draft", "--model", "--draft-model"} <= ours


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no model to serve"),
        (["--allow-model-switching", "--draft", "bielik"], "--target"),
        ([*TARGET, "--chat-template-args", "[1]"], "--chat-template-args"),
        ([*TARGET, "--adapter-path", "/nowhere"], "/nowhere"),
        ([*TARGET, "--host", "256.0.0.1"], "256.0.0.1"),
        ([*TARGET, "--chat-template", "chat.jinja"], "$(cat FILE)"),
        ([*TARGET, "--port", "0", "--chat-template", "{% for %}"], "line 1"),
    ],
)
def test_what_cannot_be_honoured_is_said_before_anything_is_loaded(
    options: list[str], words: str
) -> None:
    run("serve", *options).is_refused(2, words)


@pytest.mark.parametrize(
    ("given", "size"), [("500", 500), ("8M", 8 << 20), ("1.5GB", 3 << 29), ("2k", 2048)]
)
def test_sizes(given: str, size: int) -> None:
    assert SIZE.convert(given, None, None) == size


@pytest.mark.parametrize("given", ["many", "-8M", "", "1e9", "9" * 400 + "G"])
def test_what_is_no_size(given: str) -> None:
    refused = run("serve", *TARGET, "--prompt-cache-bytes", given)
    assert len(refused.is_refused(2, "--prompt-cache-bytes", "500M")) < 150


def test_a_port_in_use_is_no_crash() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = run("serve", *TARGET, "--port", port).is_refused(2, "in use")
        assert told.count(str(port)) == 1


@contextmanager
def process(*options: str, **environment: str) -> Iterator[tuple[Any, str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = ("serve", *options, "--port", "0", "--json")
    with start(*words, env={**os.environ, **environment}, **pipes) as started:
        try:
            lines = ""
            while not lines.endswith("}\n") and (line := started.stdout.readline()):
                lines += line
            assert lines, started.stderr.read()
            yield started, json.loads(lines)["url"]
        finally:
            started.kill()


def connect(url: str) -> HTTPConnection:
    address = urlsplit(url)
    return HTTPConnection(str(address.hostname), address.port, timeout=HUNG)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 130), pytest.param(signal.SIGHUP, 129, marks=NOT_NOHUP)],
)
def test_a_signal_ends_it_with_an_answer_to_everybody(number: int, code: int) -> None:
    with process(*TARGET) as (server, url):
        client = connect(url)
        body = {"prompt": "Wisła", "max_tokens": 1900, "stream": True}
        body["logit_bias"] = {"2": -100, "4": -100}
        client.request("POST", "/v1/completions", json.dumps(body))
        response = client.getresponse()
        assert response.readline().startswith(b"data: ")
        server.send_signal(number)
        rest = response.read().decode()
        assert server.wait(HUNG) == code
    assert "shutting down" in rest
    assert rest.endswith("data: [DONE]\n\n")


@pytest.mark.skipif(sys.platform != "linux", reason="threads are found in /proc")
def test_a_signal_that_another_thread_receives_ends_it() -> None:
    """The system chooses the thread, and another one than the first after Ctrl-Z."""
    with process(*TARGET) as (server, _url):
        threads = [int(one.name) for one in Path(f"/proc/{server.pid}/task").iterdir()]
        other = next(thread for thread in threads if thread != server.pid)
        assert CDLL(None).tgkill(server.pid, other, signal.SIGTERM) == 0
        assert server.wait(HUNG) == 0


def test_without_what_serves_the_line_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tokalign.serve.server", raising=False)
    run("serve", DEMO / "target").is_refused(4, "install them with: ", "tokalign[mlx]")


def test_a_key_from_the_environment() -> None:
    with process(*TARGET, TOKALIGN_API_KEY="klucz\n") as (_, url):
        statuses = []
        for key in ("klucz", "inny"):
            client = connect(url)
            client.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            statuses.append(client.getresponse().status)
    assert statuses == [200, 401]


def test_a_model_that_is_not_there_has_its_exit_code(tmp_path: Path) -> None:
    ended = run("serve", "--target", tmp_path, "--port", 0)
    ended.is_refused(4)
    assert ended.err.count("\n") == 1
