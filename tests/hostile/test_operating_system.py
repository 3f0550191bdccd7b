"""The operating system says no: every command ends with one line and the right exit code."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_lines import RUNS, TABLE, Ended, prepared, words
from processes import HUNG

from tokalign.build.counting.runs import is_whole

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("system"))
    (folder / "file").touch()
    assert run(folder, COMMANDS["build"]).code == 0
    assert run(folder, COMMANDS["check"]).code == 0  # both tokenizers are checked and noted now
    assert run(folder, COMMANDS["tables push"]).code == 0
    return folder


def run(
    folder: Path,
    arguments: list[str],
    *,
    start: Callable[[], None] = lambda: None,
    stdin: int | None = None,
    **streams: int,
) -> Ended:
    """Run a command in a folder. start: called in the new process before anything else.

    stdin, stdout, stderr: files. Without a stdin, a pipe has a line that somebody typed.
    """
    if arguments[:2] == ["tables", "forget"]:  # what is deleted must be there
        assert run(folder, COMMANDS["learn"]).code == 0
    if arguments[:2] == ["models", "rm"]:
        assert run(folder, COMMANDS["check"]).code == 0
    places = {"TOKALIGN_CACHE": "cache", "TOKALIGN_TABLES": "tables", "XDG_DATA_HOME": "data"}
    # A disk that takes 400 bytes a file would cut what Python compiles.
    own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    own |= {variable: str(folder / place) for variable, place in places.items()}
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    how |= {"input": "Wisła jest\n"} if stdin is None else {"stdin": stdin}
    how |= {"cwd": folder, "env": os.environ | own, "preexec_fn": start, "timeout": HUNG}
    program = ["-c", CALIBRATE] if arguments[:1] == ["calibrate"] else ["-m", "tokalign"]
    command = [sys.executable, *program, *arguments]
    ended = subprocess.run(command, text=True, check=False, **how)
    return Ended(ended.returncode, ended.stdout or "", ended.stderr or "")


CALIBRATE = """
from ticking import ticking
from tokalign.__main__ import program
with ticking():
    program()
"""
"""A program whose measurements nothing disturbs."""

ENDLESS = {"serve"}
"""Commands that end by a signal alone; tests/cli/test_serve.py sends them."""

COMMANDS = {
    name: [*name.split(), *words(line)] for name, line in RUNS.items() if name not in ENDLESS
} | {
    "chat": words("chat --target TARGET -m 4 --no-calibrate"),
    "bench": words("bench --target TARGET a.txt --limit 1 -m 4 --method copy -k 2"),
    "decode": words("decode --target TARGET -p Wisła -m 4 --ignore-chat-template"),
}


@contextmanager
def full() -> Iterator[int]:
    with FULL.open("w") as file:
        yield file.fileno()


@contextmanager
def abandoned() -> Iterator[int]:
    """A pipe that nobody reads, as after `| head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def without_stdout(folder: Path, arguments: list[str], how: str) -> Ended:
    if how == "closed":
        return run(folder, arguments, start=partial(os.closerange, 1, 2))
    with (full if how == "full" else abandoned)() as stdout:
        return run(folder, arguments, stdout=stdout)


WAYS = ("full", "abandoned", "closed")
FORMS = ("text", "json")


def in_turn(ways: dict[str, Sequence[tuple[str, ...]]]) -> list[Any]:
    """Every name in each of its ways. The first way of the first name, the second of the second,
    and so on belong to every run; all the others together take minutes."""
    return [
        pytest.param(
            name,
            *way,
            marks=[
                *([] if at == number % len(known) else [pytest.mark.long]),
                *([needs_full] if "full" in way else []),
            ],
            id="-".join((name, *way)),
        )
        for number, (name, known) in enumerate(ways.items())
        for at, way in enumerate(known)
    ]


REASONS = {"full": "No space left", "abandoned": "closed by its reader", "closed": "descriptor"}


@pytest.mark.parametrize("how", [pytest.param("full", marks=needs_full), "abandoned", "closed"])
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["decode", "--help"]])
def test_help_without_stdout_is_one_line(tmp_path: Path, arguments: list[str], how: str) -> None:
    without_stdout(tmp_path, arguments, how).is_refused(1, "stdout", REASONS[how])


@pytest.mark.parametrize(
    ("name", "form", "how"), in_turn(dict.fromkeys(COMMANDS, tuple(product(FORMS, WAYS))))
)
def test_a_command_without_stdout_is_one_line(folder: Path, name: str, form: str, how: str) -> None:
    flags = ["--json"] if form == "json" and "--json" not in COMMANDS[name] else []
    arguments = [*COMMANDS[name], *flags]
    without_stdout(folder, arguments, how).is_refused(1, "stdout", REASONS[how])


def test_a_report_is_written_whatever_stdout_is(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    bench = [*COMMANDS["bench"], "--publish", str(report)]
    without_stdout(folder, bench, "abandoned").is_refused(1, "stdout")
    assert json.loads(report.read_text())["report"] == "tokalign bench"


@pytest.mark.parametrize(
    ("name", "how"), in_turn(dict.fromkeys(COMMANDS, (("full",), ("closed",))))
)
def test_a_command_without_stderr_does_its_work(folder: Path, name: str, how: str) -> None:
    if how == "closed":
        ended = run(folder, COMMANDS[name], start=partial(os.closerange, 2, 3))
    else:
        with full() as stderr:
            ended = run(folder, COMMANDS[name], stderr=stderr)
    assert ended.code == 0
    assert ended.out


def test_an_error_without_stderr_keeps_its_exit_code(folder: Path) -> None:
    wrong = (["tables", "verify", "none.tok"], 4), (["decode", "--nonsense"], 2), (["check"], 2)
    for arguments, code in wrong:
        assert run(folder, arguments, start=partial(os.closerange, 2, 3)) == Ended(code, "", "")
        if FULL.exists():
            with full() as stderr:
                assert run(folder, arguments, stderr=stderr) == Ended(code, "", "")


def test_with_all_streams_closed_no_other_file_takes_their_place(folder: Path) -> None:
    """Otherwise the table would get the number of stdout, and what is printed."""
    before = (folder / TABLE).read_bytes()
    for name in ("build", "tables show", "check"):
        assert run(folder, COMMANDS[name], start=partial(os.closerange, 0, 3)).code == 1
    assert (folder / TABLE).read_bytes() == before


def test_a_prompt_that_cannot_be_read_is_one_line(folder: Path) -> None:
    arguments = [*COMMANDS["decode"], "-p", "-", "--quiet"]
    run(folder, arguments, start=partial(os.closerange, 0, 1)).is_refused(2, "stdin", "--prompt")
    (folder / "latin.txt").write_bytes("Wisła".encode("iso-8859-2"))
    with (folder / "latin.txt").open("rb") as stdin:
        run(folder, arguments, stdin=stdin.fileno()).is_refused(2, "stdin is not UTF-8")
    for option in ("--prompt", "--stop", "--system-prompt"):
        typed = [*COMMANDS["decode"], "--quiet", option, os.fsdecode(b"\xb3")]
        run(folder, typed).is_refused(2, f"{option} is not UTF-8")


def test_names_that_no_terminal_should_obey_are_written_out(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\x1b[2J\n.tok")
    ended = run(tmp_path, ["tables", "verify", name, "--json"])
    assert ended.code == 4
    assert json.loads(ended.out)["files"][0]["path"] == name
    for arguments in (["tables", "verify", name], ["tables", "show", name]):
        ended = run(tmp_path, arguments)
        assert "\x1b" not in ended.out + ended.err
        ended.is_refused(4, r"\udcff\x1b[2J\n.tok")


def small_files() -> None:
    """A file system where no file has room for more than 400 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))


BUILD = COMMANDS["build"][:-1]
ALIGNING = "build --target TARGET --draft DRAFT --alignment-only a.txt --output"
OUTPUTS = {
    "build --output": (BUILD, ""),
    "build --output, alignment": (words(ALIGNING), ""),
    "build --workspace": ([*BUILD, "elsewhere", "--workspace"], ""),
    "decode --html": ([*COMMANDS["decode"], "--html"], ".html"),
}
"""Command lines that end in an output, and what its name has to end in; that of a build has to be a
folder."""


def wrong_places(name: str) -> list[tuple[str, ...]]:
    """Where the output of a command cannot be."""
    if ending := OUTPUTS[name][1]:
        return [(f"file/inside{ending}",), (f"none/inside{ending}",)]
    return [("file",), ("file/inside",), *([("/sys/tokalign",)] if Path("/sys").is_dir() else [])]


@pytest.mark.parametrize(("name", "place"), in_turn({name: wrong_places(name) for name in OUTPUTS}))
def test_an_output_that_cannot_be_there_is_one_line(folder: Path, name: str, place: str) -> None:
    run(folder, [*OUTPUTS[name][0], place]).is_refused(2, place)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_file(
    folder: Path, tmp_path: Path, name: str
) -> None:
    arguments, ending = OUTPUTS[name]
    if (
        name == "build --output, alignment"
    ):  # reads both tokenizers, whose notes `models rm` deletes
        assert run(folder, COMMANDS["check"]).code == 0
    ended = run(folder, [*arguments, str(tmp_path / f"out{ending}")], start=small_files)
    ended.is_refused(1, str(tmp_path), "File too large", "make room")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_temporary_folder_without_room_is_not_taken_for_stdout(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shutil.rmtree(folder / "cache" / "checked-tokenizers")  # they are read again, from a copy
    ended = run(folder, COMMANDS["check"], start=small_files)
    assert run(folder, COMMANDS["check"]).code == 0  # noted again, for the other tests
    ended.is_refused(1, str(tmp_path), "File too large", "make room", "TMPDIR")


def test_a_build_goes_on_when_the_disk_has_room_again(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ala ma kota.\n")
    (tmp_path / "b.txt").write_text((folder / "a.txt").read_text())
    build = [*BUILD, str(tmp_path / "out"), str(tmp_path / "b.txt"), "--workspace"]
    build = [str(tmp_path / "a.txt") if one == "a.txt" else one for one in build]
    ended = run(folder, [*build, str(tmp_path / "w")], start=small_files)
    ended.is_refused(1, ".run", "File too large", "goes on")
    [finished] = (tmp_path / "w").glob("*.run")
    assert is_whole(finished)
    assert not (tmp_path / "out").exists()
    assert run(folder, [*build, str(tmp_path / "w")]).code == 0
    resumed = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.tok")}
    assert run(folder, [*build, str(tmp_path / "new")]).code == 0
    assert resumed == {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.tok")}
    assert not (tmp_path / "w").exists()
