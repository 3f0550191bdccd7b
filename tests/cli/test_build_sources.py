"""`tokalign build` from folders, globs and standard input, and on datatrove."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from polish import SENTENCES
from small_tokenizers import write_tokenizer

LINES = [sentence.replace("\n", " ") for sentence in SENTENCES]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("t") / "small-target", vocabulary_size=360)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a.txt", "b/a.txt", "b/c.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return folder


def build(
    target: Path, *arguments: str | Path, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = ("build", "--target", target, "--dictionary-only", "--language", "pl", "--json")
    return subprocess.run(
        [sys.executable, "-m", "tokalign", *map(str, (*command, *arguments))],
        input=text,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def table_of(result: subprocess.CompletedProcess[str]) -> bytes:
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    [name] = report["files"]
    return Path(name).read_bytes()


def last_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    assert result.returncode == code, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("tokalign: ")
    return last


def test_a_standard_input_that_is_closed_is_said(tmp_path: Path, target: Path) -> None:
    arguments = ["--target", str(target), "--dictionary-only", "--language", "pl"]
    arguments += ["--output", str(tmp_path / "out")]
    with Path(os.devnull).open("w") as closed:
        result = subprocess.run(
            [sys.executable, "-m", "tokalign", "build", "-", *arguments],
            stdin=closed,
            capture_output=True,
            text=True,
            check=False,
        )
    assert "stdin cannot be read" in last_line(result, 2)


def test_standard_input_is_a_corpus_of_lines(tmp_path: Path, target: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    (tmp_path / "stdin.txt").write_text(text, encoding="utf-8")
    piped = build(target, "-", "--output", tmp_path / "piped", text=text)
    read = build(target, tmp_path / "stdin.txt", "--output", tmp_path / "read")
    assert table_of(piped) == table_of(read)
    empty = build(target, "-", "--output", tmp_path / "empty", text="")
    assert "no text in the corpus" in last_line(empty, 1)


@pytest.mark.slow
def test_a_folder_and_a_glob_make_the_table_that_datatrove_makes(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    weight = ("--weight", "b/c=0.5")
    local = build(target, corpus, *weight, "--output", tmp_path / "folder")
    glob = build(target, f"{corpus}/**/*.txt", *weight, "--output", tmp_path / "glob")
    on_datatrove = ("--engine", "datatrove", "--tasks", "2", "--workers", "1")
    tasks = build(target, corpus, *weight, "--output", tmp_path / "tasks", *on_datatrove)
    assert table_of(local) == table_of(glob) == table_of(tasks)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "datatrove", "-"], "standard input cannot be read here"),
        (["--engine", "datatrove", "--tasks", "2", "--local-rank-offset", "2"], "among --tasks 2"),
        (["--weight", "c=2"], "one corpus file"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    tmp_path: Path, target: Path, corpus: Path, arguments: list[str], message: str
) -> None:
    files = [] if "-" in arguments else [corpus]
    result = build(target, *files, *arguments, "--output", tmp_path / "out")
    assert message in last_line(result, 1 if "-" in arguments else 2)
    assert not (tmp_path / "out").exists()


def test_an_engine_builds_no_alignment(tmp_path: Path, target: Path, corpus: Path) -> None:
    names = ("--draft", target, "--target", target, corpus, "--output", tmp_path / "o")
    result = subprocess.run(
        [sys.executable, "-m", "tokalign", "build", *map(str, names), "--engine", "datatrove"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--dictionary-only" in last_line(result, 2)
