"""`tokalign build`: files, figures, messages, exit codes, Ctrl-C, folders, standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_lines import Ended, run, start
from places import DEMO
from polish import SENTENCES
from processes import NOT_NOHUP, wait_for
from small_families import write_family
from small_tokenizers import write_tokenizer

from tokalign.build.text_files import TextFile
from tokalign.cli import build_plan
from tokalign.storage import TABLES, shipped
from tokalign.tables.bundle import Bundle, read_bundle
from tokalign.tables.dictionary import HOW_TO_BUILD

TEXT = "".join(sentence.replace("\n", " ") + "\n" for sentence in SENTENCES)
ONLY, SHARED = "--dictionary-only", "--engine datatrove --tasks 2"


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


def polish(target: Path, *more: object, typed: str | None = None) -> Ended:
    return run("build", "--target", target, ONLY, "--language", "pl", "--json", *more, typed=typed)


def written(ended: Ended) -> Bundle:
    """The only table that a run has made."""
    [name] = ended.json["files"]
    return read_bundle(Path(name))


def test_both_tables_are_written_where_documented(
    tmp_path: Path, draft: Path, target: Path, corpus: Path
) -> None:
    pair = ("--draft", draft, "--target", target, "--language", "pl", "--json")
    sizes = ("--dictionary-bytes", 9000, "--p-min", 0.15)
    ended = run("build", *pair, *sizes, corpus, "--output", tmp_path / "out")
    report: dict[str, Any] = ended.json
    folder = tmp_path / "out" / "small-target"
    tables = [folder / "pl.dictionary.tok", folder / "small-draft.alignment.tok"]
    assert report["files"] == [*map(str, tables)]
    assert sorted(folder.iterdir()) == tables
    assert report["text_bytes"] == len(TEXT.encode())
    assert {"seconds", "megabytes_per_second", "peak_memory_mb", "entries"} <= set(report)
    assert report["entries"] == sum(table["entries"] for table in report["tables"]) > 0
    assert str(draft) in ended.err
    dictionary, _ = map(read_bundle, tables)
    assert dictionary.parameters["p_min"] == 0.15
    assert tables[0].stat().st_size <= 9000


def test_the_bundled_corpus_is_the_default_and_builds_no_table_of_another_language(
    tmp_path: Path, target: Path, draft: Path
) -> None:
    build = ("build", "--target", target, "--output", tmp_path / "out", "--json")
    refused = run(*build, "--language", "uk", ONLY)
    refused.is_refused(2, "--language uk", "Polish", "FILE")
    assert not (tmp_path / "out").exists()
    ended = run(*build, ONLY)
    assert "pl-mini.txt" in ended.err
    assert [file["name"] for file in written(ended).corpus["files"]] == ["pl-mini.txt"]
    aligned = run(*build, "--draft", draft, "--alignment-only", "--quiet")  # it has no language
    assert [Path(name).name for name in aligned.json["files"]] == ["small-draft.alignment.tok"]
    assert aligned.err == ""


def test_tables_go_to_the_users_data_folder_by_default(
    tmp_path: Path, target: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for variable, folder in (
        ("", tmp_path / "data" / "tokalign" / "tables"),
        (str(tmp_path / "chosen"), tmp_path / "chosen"),
    ):
        monkeypatch.setenv("TOKALIGN_TABLES", variable)
        [path] = polish(target, corpus).json["files"]
        assert path == str(folder / "small-target" / "pl.dictionary.tok")
        assert Path(path).is_file()


def test_a_table_that_takes_anothers_place_is_named_with_it(
    tmp_path: Path, target: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of a corpus in place of the one that comes with tokalign; one of the bundled text
    takes none, as it has a few pages."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TOKALIGN_TABLES", raising=False)
    first = polish(target, corpus)
    assert "in place of" not in first.err
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "chosen"))
    second = polish(target, corpus)
    [before], [after] = first.json["files"], second.json["files"]
    assert f"{after} is used from now on in place of {before}" in second.err
    assert "in place of" not in polish(target, corpus, "--output", tmp_path / "o").err
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "sample"))
    third = polish(target)
    [sample] = third.json["files"]
    assert f"{sample} is not used as long as there is {before}" in third.err


def test_the_bundled_text_takes_no_place_of_a_larger_one(
    tmp_path: Path, draft: Path, target: Path, corpus: Path
) -> None:
    """Who has counted a corpus for hours wants the alignment of a further draft model."""
    place = ("--output", tmp_path / "out")
    counted = Path(polish(target, corpus, *place).json["files"][0])
    before = counted.read_bytes()
    stays = f"{counted} stays, as it counts other text than the bundled; give FILEs"
    both = run("build", "--draft", draft, "--target", target, *place, "--json")
    assert [Path(name).name for name in both.json["files"]] == ["small-draft.alignment.tok"]
    assert stays in both.err
    assert "pl-mini" not in both.err
    polish(target, *place).is_refused(2, stays)
    assert counted.read_bytes() == before
    counted.write_bytes(before[:-1])
    for _ in range(2):  # what is damaged is replaced, and one of the bundled text
        assert [file["name"] for file in written(polish(target, *place)).corpus["files"]] == [
            "pl-mini.txt"
        ]


def test_several_files_follow_the_option_as_a_shell_expands_them(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    other = tmp_path / "z.jsonl"
    other.write_text(json.dumps({"body": "Ala ma kota."}) + "\n")
    ended = polish(target, "--output", tmp_path / "o", "--field", "body", corpus, other)
    assert [file["name"] for file in written(ended).corpus["files"]] == ["text.txt", "z.jsonl"]


def test_the_command_in_messages_is_one_that_works(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    meant = {"TARGET": target, "CODE": "pl", "FILE": corpus, "tokalign": None}
    words = [meant.get(word, word) for word in HOW_TO_BUILD.split()]
    assert run(*filter(None, words), "--output", tmp_path / "o").code == 0


def test_weights_memory_and_workspace_are_honoured(
    tmp_path: Path, target: Path, corpus: Path
) -> None:
    counted = {}
    for weight in ("1", "3"):
        given = ("--weight", f"text={weight}", "--memory", "300M", "--workspace", tmp_path / "w")
        bundle = written(polish(target, corpus, "--output", tmp_path / weight, *given))
        assert bundle.corpus["files"][0]["weight"] == float(weight)
        counted[weight] = bundle.statistics["entries"]
    assert counted["3"] > counted["1"]  # what occurs once counts three times
    for wrong in ("other=2", "text=x"):
        ended = polish(target, corpus, "--output", tmp_path / "no", "--weight", wrong)
        ended.is_refused(2, "--weight", wrong)


def test_invalid_lines_are_skipped_and_named_or_refused(tmp_path: Path, target: Path) -> None:
    corpus = tmp_path / "bad.txt"
    corpus.write_bytes(TEXT.encode() + b"za\xc5 dobrze\n" * 12)
    skipped = polish(target, corpus, "--output", tmp_path / "out")
    assert skipped.json["lines_skipped"] == 12
    first = len(TEXT.splitlines()) + 1
    assert f"skipped {corpus}:{first}: not UTF-8 at byte 2" in skipped.err
    assert "2 more lines" in skipped.err
    refused = polish(target, corpus, "--output", tmp_path / "none", "--on-invalid", "refuse")
    refused.is_refused(1, f"bad.txt:{first}: not UTF-8")
    assert not (tmp_path / "none").exists()


def test_it_is_said_why_there_is_no_text_and_that_a_table_is_empty(
    tmp_path: Path, target: Path
) -> None:
    text = tmp_path / "some.jsonl"
    text.write_text("[]\n")
    refused = polish(target, text, "--output", tmp_path)
    refused.is_refused(1, "only lines that cannot be read (1)")
    assert f'skipped {text}:1: no text in field "text"' in refused.err
    text.write_text('{"text": "raz"}\n')
    built = polish(target, text, "--output", tmp_path)
    assert (built.code, built.json["entries"]) == (0, 0)
    assert "has no entries, so it drafts nothing" in built.err


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (f"{ONLY} --language pl EMPTY", 1, "no text"),
        (f"{ONLY} CORPUS", 2, "--language CODE"),  # it is never assumed
        (f"{ONLY} --language pl ./none.txt", 1, "no such file"),
        ("--language pl CORPUS", 2, f"--draft NAME or {ONLY}"),
        (f"{ONLY} --alignment-only CORPUS", 2, "leave one of them out"),
        (f"{ONLY} --language ../pl", 2, "--language"),
        (f"{ONLY} --language= CORPUS", 2, "it is empty"),
        ("--from-pack DICTIONARY", 3, "of kind dictionary; give a .pack.tok file"),
        ("--from-pack PACK --from-pack PACK", 2, "two packs are of 'cs'"),
        (f"{ONLY} --language {'n' * 65}", 2, "--language"),
        (f"{ONLY} --language pl --target beilik CORPUS", 2, "did you mean bielik"),
        (f"{ONLY} --language pl --engine datatrove -", 1, "standard input cannot be read here"),
        (f"{ONLY} --language pl CORPUS {SHARED} --local-rank-offset 2", 2, "among --tasks 2"),
        (f"{ONLY} --language pl CORPUS --weight c=2", 2, "one corpus file"),
        (f"{ONLY} --language pl CORPUS --weight text=2 --weight text.txt=3", 2, "no other weight"),
        ("--draft TARGET CORPUS --engine datatrove", 2, ONLY),
    ],
)
def test_bad_input_is_one_line_with_the_exit_code_of_its_kind(
    tmp_path: Path, target: Path, corpus: Path, line: str, code: int, said: str
) -> None:
    (tmp_path / "empty.txt").touch()
    [dictionary, *_] = shipped(TABLES).rglob("*.dictionary.tok")
    meant = {"EMPTY": tmp_path / "empty.txt", "CORPUS": corpus, "TARGET": target}
    meant |= {"DICTIONARY": dictionary, "PACK": shipped(TABLES) / "cs.pack.tok"}
    words = [meant.get(word, word) for word in line.split()]
    run("build", "--target", target, *words, "--output", tmp_path / "o").is_refused(code, said)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "line",
    [
        f"--target TARGET {ONLY} --language pl CORPUS",
        f"--target TARGET {ONLY} --language pl CORPUS {SHARED}",
        f"--target TARGET --from-model {ONLY} --language pl CORPUS",
        "--target TARGET --from-model --language pl CORPUS",
        "--target TARGET --from-pack PACK",
        "--target TARGET --draft TARGET --alignment-only",
        "--pack --language pl CORPUS",
        f"--pack --language pl CORPUS {SHARED}",
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, target: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    for work in ("compile_pack", "load_models", "read_bundle"):
        monkeypatch.setattr(build_plan, work, lambda *_, **__: pytest.fail("work was done"))
    monkeypatch.setattr(TextFile, "paragraphs", lambda _: pytest.fail("the corpus was read"))
    (tmp_path / "file").touch()
    pack = shipped(TABLES) / "cs.pack.tok"
    meant = {"CORPUS": corpus, "TARGET": target, "PACK": pack}
    words = [meant.get(word, word) for word in line.split()]
    refused = run("build", *words, "--output", tmp_path / "file" / "tables")
    refused.is_refused(2, "cannot be written")


def test_several_packs_are_compiled_at_once(tmp_path: Path, target: Path) -> None:
    packs = [f"--from-pack={shipped(TABLES) / name}.pack.tok" for name in ("cs", "uk")]
    options = ["--target", target, "--dictionary-bytes", "9000", "--output", tmp_path, "--json"]
    built = run("build", *packs, *options).json["tables"]
    assert [Path(table["path"]).name.partition(".")[0] for table in built] == ["cs", "uk"]


def test_an_alignment_reads_no_file(
    tmp_path: Path, draft: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ("build", "--draft", draft, "--target", target, "--alignment-only", "--json")
    ended = run(*pair, "none.txt", "--output", tmp_path)
    assert "the FILEs are not read" in ended.err
    assert "text_bytes" not in ended.json  # a 0 would look like the size of the table
    assert written(ended).corpus == {}


def test_no_alignment_is_made_that_could_help_nobody(tmp_path: Path, target: Path) -> None:
    by_ids = write_family(tmp_path / "w", "WordPiece")
    refused = run("build", "--draft", target, "--target", by_ids, "--output", tmp_path / "out")
    refused.is_refused(3, "used by its ids only", "give --dictionary-only")


def test_a_model_reads_a_corpus(tmp_path: Path) -> None:
    target = DEMO / "target"
    options = ["build", "--from-model", "--target", target, "--positions", "300"]
    options += ["--output", tmp_path]
    ended = run(*options, "--json")
    [built] = ended.json["tables"]
    assert ended.err.count(str(target)) == 1
    assert "text_bytes" not in ended.json  # the openings' size would look like that of the table
    assert (built["kind"], built["path"]) == ("logits", str(tmp_path / "target" / "pl.logits.tok"))
    assert built["entries"] > 300
    for more, told in (
        (["--draft", target], "--draft does nothing with --from-model"),
        (["--dictionary-bytes", "9"], f"--dictionary-bytes does nothing without {ONLY}"),
        (["--prompts"], f"--prompts does nothing without {ONLY}"),
        ([ONLY, "--engine", "datatrove"], "nothing with --engine datatrove"),
    ):
        run(*options, *more).is_refused(2, told)


def test_standard_input_is_a_corpus_of_lines(tmp_path: Path, target: Path, corpus: Path) -> None:
    piped = polish(target, "-", "--output", tmp_path / "piped", typed=TEXT)
    read = polish(target, corpus.rename(tmp_path / "stdin.txt"), "--output", tmp_path / "read")
    assert written(piped).sections == written(read).sections
    empty = polish(target, "-", "--output", tmp_path / "empty", typed="")
    empty.is_refused(1, "no text in the corpus")
    assert "tokalign: standard input: there is no text" in empty.err
    build = ["build", "-", "--target", str(target), ONLY, "--language", "pl"]
    with Path(os.devnull).open("w") as closed:
        command = [sys.executable, "-m", "tokalign", *build]
        result = subprocess.run(command, stdin=closed, capture_output=True, text=True)
    Ended(result.returncode, "", result.stderr).is_refused(2, "stdin cannot be read")


def test_no_place_for_temporary_files_is_told_as_that(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full, `tempfile` says that there is no folder."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    polish(target, "-", typed=TEXT).is_refused(1, "make room", "set TMPDIR")


def test_a_folder_and_a_glob_make_the_table_that_datatrove_makes(
    tmp_path: Path, target: Path
) -> None:
    corpus, tables = tmp_path / "corpus", []
    for name in ("a.txt", "b/a.txt", "b/c.txt"):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text(TEXT, encoding="utf-8")
    on_datatrove = (*SHARED.split(), "--workers", "1")
    for number, words in enumerate(((corpus,), (f"{corpus}/**/*.txt",), (corpus, *on_datatrove))):
        ended = polish(target, *words, "--weight", "b/c=0.5", "--output", tmp_path / str(number))
        tables.append(Path(ended.json["files"][0]).read_bytes())
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        pytest.param(signal.SIGHUP, 129, "terminated", marks=NOT_NOHUP),
    ],
)
def test_a_signal_ends_a_build_in_one_line_and_leaves_nothing(
    number: int, code: int, word: str, target: Path, tmp_path: Path
) -> None:
    output, scratch = tmp_path / "tables", tmp_path / "scratch"
    scratch.mkdir()
    given = ("--target", target, ONLY, "--language", "pl", "--output", output, "--quiet", "-")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start("build", *given, env={**os.environ, "TMPDIR": str(scratch)}, **pipes) as process:
        wait_for(lambda: bool([*scratch.rglob("stdin.txt")]))  # and now for more of it
        process.send_signal(number)
        _, told = process.communicate()
    assert (process.returncode, told.strip()) == (code, f"tokalign: {word}")
    assert not output.exists()
    assert [*scratch.iterdir()] == []
