"""mlx-lm's own programs with tokalign in them, on a pair with two tokenizers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from places import DEMO
from processes import wait_for

import tokalign

_PATCHED = "import tokalign; tokalign.patch_mlx_lm(method='draft', num_draft_tokens=3)\n"
_COUNTED = """
from tokalign.api import text as ours
made = []
responses = ours.stream_generate
def counting(*args, **options):
    for response in responses(*args, **options):
        made.append(response.from_draft)
        yield response
ours.stream_generate = counting
"""


MAIN = "from mlx_lm.generate import main; main()"
GENERATE = ("--model", str(DEMO / "target"), "--prompt", "Wisła jest", "--max-tokens", "24")
GENERATE += ("--verbose", "False", "--ignore-chat-template")
DRAFT = ("--draft-model", str(DEMO / "draft"))


@cache
def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_an_option_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="foo"):
        tokalign.patch_mlx_lm(foo=1)


@pytest.mark.slow
def test_mlx_lms_command_line_drafts_across_tokenizers() -> None:
    told = "import sys; print(sum(made), len(made), file=sys.stderr)"
    drafted = run(f"{_COUNTED}{_PATCHED}{MAIN}\n{told}", *GENERATE, *DRAFT)
    assert drafted.stdout == run(MAIN, *GENERATE).stdout
    accepted, tokens = map(int, drafted.stderr.split()[-2:])
    assert 0 < accepted < tokens
    with pytest.raises(subprocess.CalledProcessError):
        run(MAIN, *GENERATE, *DRAFT)  # alone, mlx-lm refuses the pair


_FAILING = """
import tokalign
from tokalign.api import text
from tokalign.errors import IncompatibleError, UsageError
def failing(*args, **given):
    raise {error}("no way here")
def failing_late(*args, **given):
    failing()
    yield
failing.__signature__ = __import__("inspect").signature(text.stream_generate)
failing_late.__signature__ = failing.__signature__
text.stream_generate = {name}
tokalign.patch_mlx_lm({options})
tokalign.patch_mlx_lm({options})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["failing", "failing_late"])
def test_what_tokalign_cannot_generate_mlx_lm_generates_as_before(name: str) -> None:
    program = _FAILING.format(name=name, options="", error="IncompatibleError") + MAIN
    # A draft model that mlx-lm would have refused is left out.
    for draft in ((), DRAFT):
        patched = run(program, *GENERATE, *draft)
        assert patched.stdout == run(MAIN, *GENERATE).stdout
        assert patched.stderr.count("no way here") == 1
    wrong = _FAILING.format(name=name, options="method='copy'", error="UsageError") + MAIN
    with pytest.raises(subprocess.CalledProcessError):
        run(wrong, *GENERATE)  # an option of tokalign's is the caller's own mistake


@contextmanager
def server(program: str, *arguments: str) -> Iterator[int]:
    """mlx-lm's server, started by a program; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--port", str(port), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        wait_for(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5))
    return False


def complete(port: int, prompt: str) -> tuple[str, dict[str, int]]:
    body = json.dumps({"prompt": prompt, "max_tokens": 16}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.load(response)
    return answer["choices"][0]["text"], answer["usage"]


@pytest.mark.slow
def test_mlx_lms_server_answers_the_same_with_and_without(tmp_path: Path) -> None:
    """The second request continues the first, so that a cache of both models is taken up."""
    main = "from mlx_lm.server import main; main()"
    model = ("--model", str(DEMO / "target"), "--log-level", "ERROR")
    answers = []
    for program, more in ((main, ()), (_PATCHED + main, ("--draft-model", str(DEMO / "draft")))):
        with server(program, *model, *more) as port:
            first, _ = complete(port, "Wisła jest")
            second, usage = complete(port, f"Wisła jest{first} Potem")
            other, _ = complete(port, "Najstarsze miasto")
            answers.append((first, second, other))
            assert usage["prompt_tokens_details"]["cached_tokens"] >= 4  # type: ignore[index]
    assert answers[0] == answers[1]
