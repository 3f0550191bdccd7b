"""mlx-lm's own programs with tokalign in them, on a pair with two tokenizers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from http.client import RemoteDisconnected

import pytest
from places import DEMO
from processes import HUNG
from served import complete, mlx_lms_server

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
        timeout=HUNG,
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


_TOLD = """
import sys
from tokalign.api import text as ours
responses = ours.stream_generate
def told(*args, **given):
    print(given["num_draft_tokens"], file=sys.stderr)
    return responses(*args, **given)
ours.stream_generate = told
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count"),
    [("", "3"), ("num_draft_tokens=None, translation='exact'", "None")],  # without a draft model
)
def test_options_of_the_patch_hold_whatever_the_program_says(options: str, count: str) -> None:
    patched = f"{_TOLD}import tokalign; tokalign.patch_mlx_lm({options})\n"
    assert run(f"{patched}{MAIN}", *GENERATE).stderr.split()[-1] == count


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


@pytest.mark.slow
def test_mlx_lms_server_answers_the_same_with_and_without() -> None:
    """The second request continues the first, so that a cache of both models is taken up."""
    answers = []
    for before, draft in (("", ()), (_PATCHED, DRAFT)):
        with mlx_lms_server("--model", str(DEMO / "target"), *draft, before=before) as server:
            first = complete(server, "Wisła jest").json["choices"][0]["text"]
            second = complete(server, f"Wisła jest{first} Potem").json
            other = complete(server, "Najstarsze miasto").json["choices"][0]["text"]
            answers.append((first, second["choices"][0]["text"], other))
            assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 4
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_mlx_lms_server_asks_tokalign_without_a_draft_model_too() -> None:
    failing = _FAILING.format(name="failing", options="method='copy'", error="UsageError")
    with (
        mlx_lms_server("--model", str(DEMO / "target"), before=failing) as server,
        pytest.raises(RemoteDisconnected),  # what mlx-lm does with an error of its generator
    ):
        complete(server, "Wisła jest")
