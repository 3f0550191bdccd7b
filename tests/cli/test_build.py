"""`tokalign build`, as it is run: files, figures, messages, exit codes, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import DEMO
from polish import SENTENCES
from small_tokenizers import write_tokenizer

from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
from tokalign.errors import UsageError
from tokalign.tables.bundle import read_bundle
from tokalign.tables.dictionary import HOW_TO_BUILD

TEXT = "".join(sentence.replace("\n", " ") + "\n" for sentence in SENTENCES)


def tokalign(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokalign", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("d") / "small-draft", vocabulary_size=300)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("t") / "small-target", vocabulary_size=360)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def dictionary_of(target: Path, corpus: Path, *more: str) -> tuple[str | Path, ...]:
    """The command that builds a Polish dictionary."""
    return ("build", "--target", target, "--dictionary-only", "--language", "pl", corpus, *more)


def assert_one_line_error(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("tokalign: ")
    for word in words:
        assert word in last
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_both_tables_are_written_where_documented(
    tmp_path: Path, draft: Path, target: Path, corpus: Path
) -> None:
    out = tmp_path / "out"
    result = tokalign(
        *("build", "--draft", draft, "--target", target, "--language", "pl", corpus),
        *("--output", out, "--language", "pl", "--json"),
    )
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    folder = out / "small-target"
    assert report["files"] == [
        str(folder / "pl.dictionary.tok"),
        str(folder / "small-draft.alignment.tok"),
    ]
    assert sorted(folder.iterdir()) == sorted(map(Path, report["files"]))
    assert report["bytes"] == len(TEXT.encode())
    assert {"seconds", "megabytes_per_second", "peak_memory_mb", "entries"} <= set(report)
    assert report["entries"] == sum(table["entries"] for table in report["tables"]) > 0
    assert str(draft) in result.stderr
    for path in report["files"]:
        read_bundle(Path(path))


def test_the_bundled_corpus_is_the_default_and_is_named(tmp_path: Path, target: Path) -> None:
    result = tokalign("build", "--target", target, "--dictionary-only", "--output", tmp_path / "o")
    assert result.returncode == 0, result.stderr
    assert "pl-mini.txt" in result.stderr
    bundle = read_bundle(tmp_path / "o" / "small-target" / "pl.dictionary.tok")
    assert [file["name"] for file in bundle.corpus["files"]] == ["pl-mini.txt"]


def test_tables_go_to_the_users_data_folder_by_default(
    tmp_path: Path, target: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    build = dictionary_of(target, corpus, "--json")
    for variable, folder in (
        ("", tmp_path / "data" / "tokalign" / "tables"),
        (str(tmp_path / "chosen"), tmp_path / "chosen"),
    ):
        monkeypatch.setenv("TOKALIGN_TABLES", variable)
        written = json.loads(tokalign(*build).stdout)["files"]
        assert written == [str(folder / "small-target" / "pl.dictionary.tok")]
        assert Path(written[0]).is_file()


@pytest.mark.slow
def test_one_of_the_two_can_be_left_out(
    tmp_path: Path, draft: Path, target: Path, corpus: Path
) -> None:
    names = {}
    for flag, *of_it in (
        ("--dictionary-only", "--language", "pl"),
        ("--alignment-only", "--draft", draft),
    ):
        out = tmp_path / flag
        common = ("build", "--target", target, corpus, "--quiet", *of_it)
        result = tokalign(*common, "--output", out, flag)
        assert (result.returncode, result.stderr) == (0, "")
        names[flag] = [path.name for path in (out / "small-target").iterdir()]
    assert names == {
        "--dictionary-only": ["pl.dictionary.tok"],
        "--alignment-only": ["small-draft.alignment.tok"],
    }


def test_several_files_follow_the_option_as_a_shell_expands_them(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    other = tmp_path / "z.jsonl"
    other.write_text(json.dumps({"body": "Ala ma kota."}) + "\n")
    result = tokalign(
        *("build", "--target", target, "--dictionary-only", "--output", tmp_path / "o"),
        *("--field", "body", "--language", "pl", corpus, other),
    )
    assert result.returncode == 0, result.stderr
    bundle = read_bundle(tmp_path / "o" / "small-target" / "pl.dictionary.tok")
    assert [file["name"] for file in bundle.corpus["files"]] == ["text.txt", "z.jsonl"]


@pytest.mark.slow
def test_the_command_in_messages_is_one_that_works(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    meant = {"TARGET": target, "CODE": "pl", "FILE": corpus, "tokalign": None}
    words = [meant.get(word, word) for word in HOW_TO_BUILD.split()]
    built = tokalign(*filter(None, words), "--output", tmp_path / "o")
    assert built.returncode == 0, built.stderr


@pytest.mark.slow
def test_weights_memory_and_workspace_are_honoured(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    build = dictionary_of(target, corpus, "--output")
    counted = {}
    for weight in ("1", "3"):
        out = tmp_path / weight
        given = ("--weight", f"text={weight}", "--memory", "300M", "--workspace", tmp_path / "w")
        result = tokalign(*build, out, *given)
        assert result.returncode == 0, result.stderr
        bundle = read_bundle(out / "small-target" / "pl.dictionary.tok")
        assert bundle.corpus["files"][0]["weight"] == float(weight)
        counted[weight] = bundle.statistics["entries"]
    assert counted["3"] > counted["1"]  # what occurs once counts three times
    for wrong in (("--weight", "other=2"), ("--weight", "text=x")):
        assert_one_line_error(tokalign(*build, tmp_path / "no", *wrong), 2, *wrong)


def test_a_dictionary_is_of_the_size_asked_for(tmp_path: Path, target: Path, corpus: Path) -> None:
    build = dictionary_of(target, corpus, "--output")
    given = ("--dictionary-bytes", "9000", "--p-min", "0.15")
    assert tokalign(*build, tmp_path / "out", *given).returncode == 0
    path = tmp_path / "out" / "small-target" / "pl.dictionary.tok"
    bundle = read_bundle(path)
    assert (bundle.parameters["kind"], bundle.parameters["p_min"]) == ("backoff", 0.15)
    assert path.stat().st_size <= 9000


def test_invalid_lines_are_skipped_and_named_or_refused(tmp_path: Path, target: Path) -> None:
    corpus = tmp_path / "bad.txt"
    corpus.write_bytes(TEXT.encode() + b"za\xc5 dobrze\n" * 12)
    build = dictionary_of(target, corpus)
    out = tmp_path / "out"

    skipped = tokalign(*build, "--output", out, "--json")
    assert skipped.returncode == 0
    assert json.loads(skipped.stdout)["lines_skipped"] == 12
    first = len(TEXT.splitlines()) + 1
    assert f"skipped {corpus}:{first}: not UTF-8 at byte 2" in skipped.stderr
    assert "skipped 2 more lines" in skipped.stderr

    refused = tokalign(*build, "--output", tmp_path / "none", "--on-invalid", "refuse")
    assert_one_line_error(refused, 1, f"bad.txt:{first}: not UTF-8")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_the_bundled_corpus_builds_no_table_of_another_language(
    tmp_path: Path, target: Path, draft: Path
) -> None:
    build = ("build", "--target", target, "--output", tmp_path / "out")
    refused = tokalign(*build, "--language", "uk", "--dictionary-only")
    assert_one_line_error(refused, 2, "--language uk", "Polish", "FILE")
    assert not (tmp_path / "out").exists()
    aligned = tokalign(*build, "--draft", draft, "--alignment-only")  # it has no language
    assert aligned.returncode == 0, aligned.stderr


def test_the_language_of_a_corpus_is_never_assumed(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    build = ("build", "--target", target, "--dictionary-only", corpus)
    out = ("--output", tmp_path / "out")
    assert_one_line_error(tokalign(*build, *out), 2, "language", "--language CODE")
    assert not (tmp_path / "out").exists()
    assert tokalign(*build, *out, "--language", "uk").returncode == 0
    assert (tmp_path / "out" / "small-target" / "uk.dictionary.tok").is_file()


def test_a_wrong_field_is_one_line_that_names_the_fields(tmp_path: Path, target: Path) -> None:
    corpus = tmp_path / "a.jsonl"
    corpus.write_text(json.dumps({"id": 1, "body": "Ala ma kota."}) + "\n")
    wrong = tokalign("build", "--target", target, "--dictionary-only", "--language", "pl", corpus)
    assert_one_line_error(wrong, 1, "a.jsonl", 'no field "text"', "id, body", "--field")
    assert "skipped" not in wrong.stderr


@pytest.mark.slow
def test_bad_input_is_one_line_with_the_exit_code_of_its_kind(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    build = ("build", "--target", target, "--output", tmp_path / "out", "--language", "pl")
    only = "--dictionary-only"
    assert_one_line_error(tokalign(*build, only, empty), 1, "empty.txt", "no text")
    assert_one_line_error(tokalign(*build, only, tmp_path / "x.txt"), 1, "no such file")
    assert_one_line_error(tokalign(*build, corpus), 2, "--draft", only)
    both = tokalign(*build, only, "--alignment-only", corpus)
    assert_one_line_error(both, 2, "leave one of them out")
    for name in ("../pl", "n" * 65):
        assert_one_line_error(tokalign(*build, only, "--language", name), 2, "--language")
    unknown = tokalign("build", "--target", "beilik", only, "--language", "pl", corpus)
    assert_one_line_error(unknown, 2, "did you mean bielik")
    assert not (tmp_path / "out").exists()


def test_a_p_min_that_no_table_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="p_min"):
        BackoffOptions(p_min=float("nan"))


_SLOW_BUILD = """
import sys, time
from tokalign.build.text_files import TextFile

read = TextFile.paragraphs

def read_slowly(self):
    for line in read(self):
        print("reading", file=sys.stderr, flush=True)
        time.sleep(600)
        yield line

TextFile.paragraphs = read_slowly
from tokalign.cli import main
main()
"""


def test_ctrl_c_leaves_no_file(tmp_path: Path, target: Path, corpus: Path) -> None:
    out = tmp_path / "out"
    arguments = dictionary_of(target, corpus)
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_BUILD, *map(str, arguments), "--output", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with this signal ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    while "reading" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)  # it does not sleep to the end
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "tokalign: interrupted"
    assert not out.exists()


def test_a_model_reads_a_corpus(tmp_path: Path) -> None:
    target = DEMO / "target"
    options = ["build", "--from-model", "--target", target, "--positions", "300"]
    options += ["--output", tmp_path]
    result = tokalign(*options, "--json")
    assert result.returncode == 0, result.stderr
    [built] = json.loads(result.stdout)["tables"]
    assert (built["kind"], built["path"]) == ("logits", str(tmp_path / "target" / "pl.logits.tok"))
    assert built["entries"] > 300
    for more, told in (
        (["--draft", target], "--draft does nothing with --from-model"),
        (["--dictionary-bytes", "9"], "--dictionary-bytes does nothing without --dictionary-only"),
        (["--prompts"], "--prompts does nothing without --dictionary-only"),
        (["--dictionary-only", "--engine", "datatrove"], "nothing with --engine datatrove"),
    ):
        assert_one_line_error(tokalign(*options, *more), 2, told)
