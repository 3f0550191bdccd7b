"""Options declared as data: conditions, help, empty paths; those of every command; without mlx."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from command_lines import run as tokalign
from command_lines import start, words
from places import DEMO

from tokalign.cli import group
from tokalign.cli.command import Command, FilePath, Option
from tokalign.cli.conflicts import TABLE, Rule, flag_of
from tokalign.cli.output import flags
from tokalign.errors import UsageError
from tokalign.installation import install_line
from tokalign.runtime.options import CacheOptions
from tokalign.storage import POLISH, sample_text

PARAMETERS = [
    Option("--draft", "A model.", metavar="NAME"),
    Option("--method", "How.", default="auto"),
    Option("-s --size", "How much.", int, 3),
    Option("--tables", "What.", int, hidden=True),
    Option("--loud/--silent", "With noise.", default=False),
    Option("--alone", "A condition on no option of these.", int),
    Option("--page", "A page.", FilePath(".html", mark="made by a program")),
    click.Argument(["files"], nargs=-1, metavar="[FILE]..."),
]
RULES = (
    Rule("--size", needs="--draft | --elsewhere"),
    Rule("--tables", excludes="--method copy | --json"),
    Rule("--loud", needs="FILE"),
    Rule("--loud", needs="--draft", only_in="large"),
    Rule("--alone", needs="--elsewhere"),
)


@click.command("small", cls=Command, params=[*PARAMETERS])
def small(**given: Any) -> None:
    """Do a little."""
    assert set(given) >= {"size", "files"}
    assert not {"as_json", "quiet"} & set(given)  # which are the same for every command
    click.echo(flags.as_json)


def test_the_flags_of_a_command_are_not_those_of_the_next_one() -> None:
    assert run("--json").stdout == "True\n"
    assert run().stdout == "False\n"


def run(*arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokalign.cli.conflicts.TABLE", RULES)
        return CliRunner().invoke(small, arguments)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--size 4", "--size does nothing without --draft NAME; give that too, or leave"),
        ("-s 4", "--size does nothing without --draft NAME"),
        ("--loud", "--loud does nothing without FILE"),
        ("--tables 1 --method copy", "--tables does nothing with --method copy; leave one of them"),
        ("--tables 1 --json", "--tables does nothing with --json"),
    ],
)
def test_an_option_without_effect_is_refused(typed: str, told: str) -> None:
    error = run(*typed.split()).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(told)


LET_PASS = """
--size 4 --draft d
--size 3
--silent
--loud a.txt
--tables 1
--tables 0 --json
--alone 4
--method copy --json --quiet
"""


@pytest.mark.parametrize("typed", LET_PASS.split("\n"))
def test_what_has_an_effect_or_asks_for_nothing_is_let_pass(typed: str) -> None:
    assert run(*typed.split()).exit_code == 0


def test_rare_options_are_shown_on_request() -> None:
    usual, whole = run("--help").stdout, run("--help-all").stdout
    assert "--tables" not in usual
    assert "--help-all" in usual
    assert "--tables" in whole
    assert "Do a little." in whole
    verify = partial(CliRunner().invoke, COMMANDS["verify"])  # which has none
    assert "--help-all" not in verify(["--help"]).stdout
    assert "FILE..." in verify(["--help-all"]).stdout


def test_a_file_of_another_kind_is_never_overwritten(tmp_path: Path) -> None:
    result = run("--page", str(tmp_path / "run.json"))
    assert result.exit_code == 2
    assert "does not end in .html" in result.stderr
    page = tmp_path / "run.html"
    assert run("--page", str(page)).exit_code == 0
    page.write_text("<h1>of someone</h1>")
    result = run("--page", str(page))
    assert result.exit_code == 2
    assert "give another name" in result.stderr
    page.write_text("<!-- made by a program --> later")
    assert run("--page", str(page)).exit_code == 0


@pytest.mark.parametrize(
    "line",
    [
        "calibrate --html FILE.html",
        "bench --publish FILE.json",
        "bench --html FILE.html",
        "check --html FILE.html",
        "decode -p x --html FILE.html",
    ],
)
def test_no_command_replaces_a_file_that_it_did_not_write(line: str, tmp_path: Path) -> None:
    words = line.replace("FILE", str(tmp_path / "config")).split()
    (file := Path(words[-1])).write_text('{"of": "someone"}')
    ended = tokalign(*words, "--target", DEMO / "target")
    assert (ended.code, "give another name" in ended.err) == (2, True)
    assert file.read_text() == '{"of": "someone"}'


@pytest.mark.parametrize("bits", range(10))
def test_a_number_of_bits_is_taken_by_the_command_line_and_by_python_alike(bits: int) -> None:
    """mlx quantizes to these."""
    mx = pytest.importorskip("mlx.core")
    taken = bits in (1, 2, 3, 4, 5, 6, 8)
    for take in (
        lambda: mx.quantize(mx.zeros((1, 64)), bits=bits),
        partial(CacheOptions, kv_bits=bits),
    ):
        with nullcontext() if taken else pytest.raises(ValueError, match=r"6 and 8|6, 8|1 to 8"):
            take()
    ended = tokalign(*DECODE.split(), "--kv-bits", bits)
    assert (f"'{bits}' is not one of" in ended.err) != taken


NOWHERE = str(DEMO / "target")  # each line fails before a model is loaded
DECODE = f"decode --target {NOWHERE} -p x"
SERVE = f"serve --target {NOWHERE}"


def leaves(command: click.Command) -> dict[str, click.Command]:
    """A command, or those of a group, by their names."""
    if not isinstance(command, click.Group):
        return {str(command.name): command}
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return {name: leaf for one in inner if one for name, leaf in leaves(one).items()}


COMMANDS = leaves(group)
DECLARED = {
    flag: one
    for command in COMMANDS.values()
    for one in command.params
    for flag in (*one.opts, flag_of(one))
}


def test_every_rule_is_about_options_and_values_that_there_are() -> None:
    for rule in TABLE:
        assert all(flag in DECLARED for flag in rule.options.split()), rule
        assert all(name in COMMANDS for name in rule.only_in.split()), rule
        for condition in filter(None, [*rule.needs.split(" | "), *rule.excludes.split(" | ")]):
            flag, _, value = condition.partition(" ")
            known = DECLARED[flag].type
            if value and isinstance(known, click.Choice):
                assert any(fnmatchcase(choice, value) for choice in known.choices), rule


def test_no_count_is_larger_than_what_tables_and_libraries_hold() -> None:
    options = [one for command in COMMANDS.values() for one in command.params]
    counts = [one.type for one in options if isinstance(one.type, click.types.IntParamType)]
    assert len(counts) > 30
    assert all(isinstance(kind, click.IntRange) and kind.max for kind in counts)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_path_and_no_name_of_a_model_may_be_empty(name: str) -> None:
    """A variable of the shell that is not set would stand for the current folder."""
    command = COMMANDS[name]
    empty = [""] * sum(isinstance(one, click.Argument) for one in command.params)
    for parameter in command.params:
        is_path = isinstance(parameter.type, click.Path)
        if is_path or {"--target", "--draft", "--field"} & {*parameter.opts}:
            is_option = isinstance(parameter, click.Option)
            result = CliRunner().invoke(command, [parameter.opts[0], ""] if is_option else empty)
            told = f"{result.stderr}{result.exception}"
            assert (result.exit_code != 0, told.count("it is empty")) == (True, 1), parameter.opts


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{DECODE} --alignment a.tok", "without --draft"),
        (
            f"{DECODE} --draft llama3.2 --translation context:5 --alignment a.tok",
            "with --translation con",
        ),
        (f"{DECODE} --method copy --dictionary d.tok", "with --method copy"),
        ("calibrate --target bielik --draft llama3.2 --drafter F", "with --draft"),
        (f"{DECODE} --top-p 0.9", "without --temp"),
        (f"{SERVE} --kv-group-size 32", "without --kv-bits"),
        ("serve --allow-model-switching --draft llama3.2", "without --target NAME"),
        (f"bench --target {NOWHERE} p.txt --prompt-tokens 3", "without --text"),
        ("check --target bielik --draft llama3.2 --language uk a.txt", "with FILE"),
        ("build --target bielik --dictionary-only --tasks 4", "without --engine datatrove"),
        ("build --target bielik --from-pack a.pack.tok --memory 9G", "with --from-pack"),
        ("build --target bielik --from-model --dictionary-only --weight a=2", "with --from-model"),
        ("build --pack --p-min 0.1 a.txt", "with --pack"),
        ("build --pack", "without FILE"),  # one of the bundled text would hide the shipped one
        ("learn --list folder", "with FOLDER"),
    ],
)
def test_an_option_without_effect_is_refused_before_anything_loads(line: str, told: str) -> None:
    ended = tokalign(*line.split())
    ended.is_refused(2, f" does nothing {told}")
    assert ended.err.count("\n") == 1


def test_an_empty_stop_string_and_a_file_for_a_folder_are_refused_before_anything_loads(
    tmp_path: Path,
) -> None:
    tokalign("decode", "--target", NOWHERE, "-p", "x", "--stop=").is_refused(2, "--stop is empty")
    (tmp_path / "config.json").write_text("{}")
    ended = tokalign("decode", "--target", tmp_path / "config.json", "-p", "x")
    ended.is_refused(4, "config.json is a file; give the complete local folder")


@pytest.mark.parametrize(
    ("typed", "told"), [("--temp=x", "number"), ("--top-k=.5", "whole number")]
)
def test_what_is_no_number_is_told_in_plain_words(typed: str, told: str) -> None:
    assert f"is not a valid {told}." in tokalign("decode", "--target", NOWHERE, typed).err


def test_an_empty_api_key_would_leave_the_server_open() -> None:
    tokalign("serve", "--target", NOWHERE, "--api-key", " ").is_refused(2, "--api-key")


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("--max-token", "--max-tokens"), ("--targt", "--target"), ("--logit-bias", None)],
)
def test_only_close_options_are_suggested(typed: str, suggested: str | None) -> None:
    code, _, message = tokalign("decode", typed, "1")
    assert code == 2
    assert typed in message
    assert ("Did you mean" in message) == (suggested is not None)
    assert (suggested or typed) in message


WITHOUT_MLX = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mlx", "mlx_lm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from tokalign.cli import main
main()
"""


def without_mlx(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_MLX, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "line", ["decode -p Ala", "chat", "calibrate", "bench --quiet", "train TEXT --output drafter"]
)
def test_a_command_that_runs_models_says_what_to_install(line: str) -> None:
    """And says it before it downloads or loads a model, which might take long."""
    typed = line.replace("TEXT", str(sample_text(POLISH))).split()
    result = without_mlx(*typed, "--target", NOWHERE)
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.splitlines() == [
        "tokalign: this command runs models with mlx, which is not installed; install it with: "
        + install_line(extra="mlx")
    ]


def test_commands_that_only_read_texts_work(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Ala ma kota, a kot ma Alę.\n")
    for line in ("check --draft DRAFT", "bench --method copy --text"):
        result = without_mlx(*words(line), "--target", DEMO / "target", tmp_path / "text.txt")
        assert result.returncode == 0, result.stderr


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    tokalign("learn", ".", "--name", "some", "--target", DEMO / "target").is_refused(
        2, "the current folder is gone"
    )


LAST_WORDS = """
import atexit, os, sys
from types import ModuleType

class Library:
    def __del__(self, write=os.write):
        write(1, b"the end of the library")

library = Library()
{loaded}
from tokalign.__main__ import program
from tokalign.cli.output import to_stderr
sys.argv[1:] = {words}
real = sys.exit
def leave(status):
    atexit.register(print, "what was to be done")
    real(status)
sys.exit = leave
program()
"""


@pytest.mark.parametrize("words", [["--version"], ["tables", "show", "/nowhere"]])
@pytest.mark.parametrize("runs_models", [False, True])
def test_a_process_that_runs_models_leaves_without_the_end_of_their_libraries(
    words: list[str], runs_models: bool
) -> None:
    """A BLAS that is preloaded may wait in its own end for ever; Python's has come by then."""
    loaded = "sys.modules['mlx.core'] = ModuleType('mlx.core')" if runs_models else ""
    program = LAST_WORDS.format(loaded=loaded, words=words)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == (0 if words == ["--version"] else 4)
    assert "what was to be done" in ended.stdout
    assert ("the end of the library" in ended.stdout) is not runs_models


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is ..."),
        RuntimeError(
            "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIO...)."
        ),
    ],
)
def test_full_memory_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise error

    monkeypatch.setattr("tokalign.cli.models.machine_memory", full)
    tokalign("models", "list").is_refused(1, "not enough memory", "--max-kv-size")


@pytest.mark.parametrize("module", ["click", "tokalign.cli.decode"])
@pytest.mark.parametrize("raised", ["signal.raise_signal", "make_a_class"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_in_one_line_while_the_program_is_imported(
    module: str, raised: str, number: signal.Signals
) -> None:
    """Before Python 3.12 what a `__set_name__` raises comes wrapped in a RuntimeError."""
    code = f"""
import runpy, signal, sys

class Field:
    def __set_name__(self, *_):
        signal.raise_signal({int(number)})

def make_a_class(_):
    type("Made", (), {{"field": Field()}})

class Import:
    def find_spec(self, name, *_):
        if name == {module!r}:
            {raised}({int(number)})

sys.meta_path.insert(0, Import())
sys.argv[1:] = ["decode", "--help"]
runpy.run_module("tokalign", run_name="__main__")
"""
    _, said = (ended := start(code=code, stderr=subprocess.PIPE, text=True)).communicate()
    assert ended.returncode == 128 + number
    words = {signal.SIGINT: "tokalign: interrupted", signal.SIGTERM: "tokalign: terminated"}
    if number is signal.SIGINT and raised == "signal.raise_signal":
        assert said.strip() == words[number]
    assert said.strip() in ("", words[number])


def test_sigterm_is_answered_once() -> None:
    """`timeout` sends it to a process and to its group; the second must not stop the clearing."""
    code = """
import runpy, signal, sys

class Work:
    def find_spec(self, name, *_):
        if name == "tokalign.cli.decode":
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                print("cleared")

sys.meta_path.insert(0, Work())
sys.argv[1:] = ["decode", "--help"]
runpy.run_module("tokalign", run_name="__main__")
"""
    ended = start(code=code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ended.communicate() == ("cleared\n", "tokalign: terminated\n")
    assert ended.returncode == 143
