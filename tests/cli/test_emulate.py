"""`tokalign emulate`: figures of drafting on texts, compared with a count by hand."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from click.testing import CliRunner, Result
from places import DEMO
from polish import SENTENCES
from small_tables import write_dictionary

from tokalign.cli.emulate import command
from tokalign.errors import CorpusError, MissingAssetError
from tokalign.runtime.methods import LOOKUP_METHODS
from tokalign.tables.bundle import Bundle, write_bundle
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tokenizer.tokenizer import Tokenizer

TEXT = "Rada Ministrów przyjęła projekt ustawy"


@pytest.fixture
def dictionary(tmp_path: Path, bielik: Tokenizer[Any]) -> Path:
    """A dictionary that knows what follows `Rada`: three tokens right and one wrong."""
    ids = bielik.encode(TEXT)
    first = len(bielik.encode("Rada"))
    entries = {tuple(ids[:first]): ((*ids[first : first + 3], 5), 0.5)}
    bundle = Bundle(
        kind="dictionary",
        fingerprints={"target": bielik.fingerprint},
        parameters={"kind": "dictspec", "vocabulary_size": 32_128},
        sections=DictSpecTable.from_entries(entries, 32_128).to_sections(),
    )
    write_bundle(tmp_path / "pl.dictionary.tok", bundle)
    return tmp_path / "pl.dictionary.tok"


def emulate(dictionary: Path, text: Path, *more: str) -> Result:
    arguments = ["--target", "bielik", "--text", str(text)]
    if "copy" not in more:
        arguments += ["--dictionary", str(dictionary)]
    return CliRunner().invoke(command, [*arguments, "--quiet", *more])


def test_steps_match_a_count_by_hand(
    dictionary: Path, tmp_path: Path, bielik: Tokenizer[Any]
) -> None:
    text = tmp_path / "t.jsonl"
    text.write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"text": "Nic."}) + "\n")
    tokens = len(bielik.encode(TEXT)) + len(bielik.encode("Nic."))
    found = json.loads(emulate(dictionary, text, "--json").stdout)
    assert found["tokens"] == tokens
    assert found["steps"] == tokens - 3
    assert found["coverage"] == 1 / (tokens - 3)
    assert found["mean_accepted_length"] == 3
    assert found["draft_acceptance_rate"] == 3 / 4
    assert found["speedup"] == pytest.approx(1 + found["coverage"] * 3, abs=1e-12)
    assert found["speedup"] == tokens / (tokens - 3)
    first = json.loads(emulate(dictionary, text, "--json", "--limit", "1").stdout)
    assert first["tokens"] == len(bielik.encode(TEXT))
    short = json.loads(emulate(dictionary, text, "--json", "--max-draft", "2").stdout)
    assert short["steps"] == tokens - 2


@pytest.mark.parametrize("method", LOOKUP_METHODS)
def test_every_source_is_emulated(
    method: str, dictionary: Path, tmp_path: Path, bielik: Tokenizer[Any]
) -> None:
    """On text that repeats itself, every source that copies saves most of the repetition."""
    text = tmp_path / "t.txt"
    text.write_text(" ".join([TEXT] * 6) + "\n")
    found = json.loads(emulate(dictionary, text, "--json", "--method", method).stdout)
    expected = 1 + found["coverage"] * found["mean_accepted_length"]
    assert found["speedup"] == pytest.approx(expected, abs=1e-12)
    assert found["tokens"] == len(bielik.encode(" ".join([TEXT] * 6)))
    assert (found["speedup"] > 2) == (method != "dictionary")
    assert found["rows_per_step"] <= 1 + 8


def test_the_more_a_row_costs_the_fewer_are_verified(dictionary: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(" ".join(SENTENCES).replace("\n", " ") + "\n")
    rows = [
        json.loads(
            emulate(dictionary, text, "--json", "--method", "copy", "--row-cost", cost).stdout
        )["rows_per_step"]
        for cost in ("0", "0.1", "1")
    ]
    assert rows[0] > rows[1] > rows[2] == 1


def test_the_dictionary_of_a_language_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    text = tmp_path / "t.txt"
    text.write_text(TEXT + "\n")
    given = ["--target", "bielik", "--text", str(text), "--language"]
    shipped = CliRunner().invoke(command, [*given, "pl"])
    assert "pl.dictionary.tok" in shipped.stderr
    refused = CliRunner().invoke(command, [*given, "uk"])
    assert isinstance(refused.exception, MissingAssetError)
    assert "language: pl" in str(refused.exception)


def test_a_dictionary_beside_the_target_is_found(tmp_path: Path) -> None:
    model, text = tmp_path / "model", tmp_path / "t.txt"
    copytree(DEMO / "target", model, ignore=lambda _folder, names: ["model.safetensors"])
    tokenizer: Tokenizer[Any] = Tokenizer.from_file(model)
    (model / "tokalign").mkdir()
    path = write_dictionary(model / "tokalign" / "pl.dictionary.tok", tokenizer, TEXT)
    text.write_text(TEXT)
    for target in (model, model / "tokenizer.json"):
        arguments = ["--target", str(target), "--text", str(text)]
        assert f"dictionary -> {path}\n" in CliRunner().invoke(command, arguments).stderr


def test_prompt_tokens_are_not_counted(dictionary: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(TEXT + "\n")
    whole, rest = (
        json.loads(emulate(dictionary, text, "--json", "--prompt-tokens", given).stdout)["tokens"]
        for given in ("0", "3")
    )
    assert rest == whole - 3


def test_without_json_a_table_is_printed(dictionary: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(TEXT + "\n")
    assert "speedup" in emulate(dictionary, text).stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "no such file"),
        ("empty.txt", b"\n\n", "no text"),
        ("latin.txt", "żółw\n".encode("iso-8859-2"), "not UTF-8"),
        ("other.jsonl", b'{"tekst": "a"}\n', "--field"),
        ("broken.jsonl", b"{\n", "not JSON"),
    ],
)
def test_texts_that_cannot_be_read(
    dictionary: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = emulate(dictionary, tmp_path / name)
    assert isinstance(result.exception, CorpusError)
    assert message in str(result.exception)
