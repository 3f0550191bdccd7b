"""What goes to a terminal cannot drive it, and what goes to a file or a pipe is left as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tty
import unicodedata
from pathlib import Path

import pytest
from command_lines import run, start
from hypothesis import given
from hypothesis import strategies as st
from places import DEMO
from random_models import write_model
from ticking import ticking
from written_tables import write_bundle

from tokalign.cli.output import figures_table, one_line, paragraph, rows, table, to_json, visible
from tokalign.storage import sample_text
from tokalign.tables.bundle import Bundle

HARMLESS = {"\n", "\t"}
REORDERING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
EVIL = "\x1b]0;title\x07\x1b[31m\x9b2J\x7f\r\b\u202egnp\u2069\udcff"

any_text = st.text(st.characters() | st.sampled_from(EVIL + "\u2028\u2029\x85\x0b"))


def drives_a_terminal(text: str) -> bool:
    controls = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cs")}
    return bool((controls | REORDERING & set(text)) - HARMLESS)


@given(any_text)
def test_nothing_visible_drives_a_terminal_and_the_rest_stays(text: str) -> None:
    assert not drives_a_terminal(visible(text))
    assert len(one_line(text).splitlines()) <= 1
    if not drives_a_terminal(text) and not set(text) & set("\u2028\u2029"):
        assert visible(text) == text


@given(st.dictionaries(any_text, st.lists(any_text) | st.dictionaries(any_text, any_text)))
def test_json_means_the_same_with_its_control_characters_escaped(
    value: dict[str, list[str] | dict[str, str]],
) -> None:
    written = to_json(value)
    assert json.loads(written) == value
    assert not drives_a_terminal(written)
    written.encode()


@given(st.lists(st.tuples(any_text, any_text), min_size=1))
def test_a_row_of_a_table_is_one_line_where_it_fits(rows: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100000")
        shown = table(rows)
    assert len(shown.split("\n")) == len(rows)
    assert not drives_a_terminal(shown)


def on_a_terminal(arguments: list[str]) -> tuple[int, str]:
    """Exit code of a command, and what a terminal gets on its stdout and stderr."""
    master, terminal = os.openpty()
    tty.setraw(terminal)  # so that line feeds arrive as they are
    process = start(*arguments, stdout=terminal, stderr=terminal)
    os.close(terminal)
    received = b""
    try:
        while part := os.read(master, 1 << 16):
            received += part
    except OSError:  # what Linux says when the last writer has closed a terminal
        pass
    os.close(master)
    return process.wait(), received.decode()


@pytest.fixture
def evil_table(tmp_path: Path) -> Path:
    path = tmp_path / "evil.dictionary.tok"
    evil = EVIL.replace("\udcff", "")  # msgpack holds no half surrogate pairs
    write_bundle(
        path,
        Bundle(
            kind="dictionary",
            fingerprints={"target": "ab" * 32},
            corpus={"files": [{"name": f"{evil}x\ny"}]},
            parameters={evil: [evil]},
            sections={},
        ),
    )
    return path


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_metadata_of_a_table_is_shown_and_not_obeyed(evil_table: Path, form: list[str]) -> None:
    _, shown = on_a_terminal(["tables", "show", str(evil_table), *form])
    assert "title" in shown
    assert "Traceback" not in shown
    assert not drives_a_terminal(shown)


def test_a_models_text_is_escaped_on_a_terminal_and_exact_in_a_pipe(tmp_path: Path) -> None:
    """A model of random weights says control characters; the seed makes it say them twice."""
    model = write_model(tmp_path / "model", vocabulary_size=420)
    arguments = ["decode", "--target", str(model), "-p", "Ala", "-m", "300", "--temp", "5"]
    arguments += ["--seed", "1", "--ignore-chat-template", "--quiet", "--no-color"]
    piped = subprocess.run(
        [sys.executable, "-m", "tokalign", *arguments], capture_output=True, check=True
    ).stdout.decode()
    assert piped == run(*arguments, "--json").json["text"] + "\n"
    assert drives_a_terminal(piped)
    code, shown = on_a_terminal(arguments)
    assert code == 0
    assert shown == visible(piped)


def test_a_result_without_json_is_a_table_of_its_names_and_values() -> None:
    result = {"own": None, "host": {"p50": 0.1, "p99": 2000}, "files": [{"name": "a"}], "k": [1, 2]}
    assert list(rows(result)) == [
        ("own", "-"),
        ("host.p50", 0.1),
        ("host.p99", "2,000"),
        ("files.1.name", "a"),
        ("k", "1, 2"),
    ]


def test_a_table_of_figures_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("name", "k", "tokens_per_round", "speedup", "low", "high", "against_plain")
    row = dict.fromkeys(names, 1.0) | {
        "name": "plain again",
        "k": 2,
        "against_plain": "no difference",
    }
    assert figures_table(names, [row]).startswith("| name ")
    for width in (80, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = figures_table(names, [row]).splitlines()
        assert max(map(len, lines)) <= width
        assert "plain" in lines[-1] or "plain" in lines[-2]


def test_a_command_in_a_paragraph_is_not_cut_within_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in range(4, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        assert "--dictionary-only" in paragraph("Build it with: tokalign build --dictionary-only")


CHECK = ["check", "--target", "bielik", "--draft", "llama3.2"]


@pytest.mark.parametrize(
    "line",
    [
        CHECK,
        ["models"],
        ["tables", "show", "llama3.2"],
        ["bench", "--text", "--target", "bielik", str(sample_text("pl")), "--limit", "2"],
        ["calibrate", "--target", str(DEMO / "target"), "--budget", "2"],
    ],
    ids=" ".join,
)
def test_results_fit_the_lines_also_in_a_file(
    line: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    for width in (60, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        with ticking():
            ended = run(*line)
        assert ended.code == 0, ended.err
        long = [line for line in ended.out.splitlines() if len(line) > width]
        assert all(len(line.split()) <= 2 for line in long), "a path stays with its name"


@pytest.mark.parametrize("line", ["-p @ENDLESS", "-p x --json-schema ENDLESS", ""])
def test_a_text_that_does_not_end_is_refused(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokalign.cli.output.MOST_TEXT", 1 << 12)
    words = line.replace("ENDLESS", "/dev/zero").split()
    ended = run("decode", "--target", DEMO / "target", *words, typed="x" * (1 << 13))
    ended.is_refused(2, "more than 4,096 characters")


def test_the_mark_that_a_file_begins_with_is_no_part_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Wisła", "utf-8-sig")
    (tmp_path / "schema.json").write_text('{"type": "boolean"}', "utf-8-sig")
    given = ("--json-schema", tmp_path / "schema.json", "-m", "8", "--method", "plain", "--json")
    line = ("decode", "--target", DEMO / "target", *given)
    for typed in (("-p", f"@{tmp_path / 'prompt.txt'}"), ()):
        answered = run(*line, *typed, typed="\ufeffWisła").json
        assert answered["prompt"] == "Wisła"
