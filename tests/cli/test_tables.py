"""`tokalign tables show` and `tables verify` on whole, damaged and missing tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from small_families import write_family
from small_tables import dictionary_bundle

from tokalign.cli.tables import show, verify
from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.tables.bundle import Bundle, encode_bundle, write_bundle


@pytest.fixture
def table(tmp_path: Path) -> Path:
    bundle = dictionary_bundle({(1, 2): ((3,), 0.5)}, 10, "ab" * 32)
    path = tmp_path / "pl.dictionary.tok"
    write_bundle(
        path,
        replace(
            bundle,
            corpus={"files": [{"name": "a.txt", "bytes": 1234, "lines": 5}]},
            parameters={**bundle.parameters, "p_min": 0.2},
        ),
    )
    return path


def run(command: object, *arguments: str | Path) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))  # type: ignore[arg-type]


def test_show_shows_all_that_the_header_says(table: Path) -> None:
    shown = json.loads(run(show, table, "--json").stdout)
    assert shown["bytes"] == table.stat().st_size
    assert (shown["kind"], shown["format_version"]) == ("dictionary", 2)
    assert shown["fingerprints"] == {"target": "ab" * 32}
    assert shown["sections"]["backoff.predictions.ids.u16"] == 2 * 2
    lines = run(show, table).stdout.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["corpus.files.1.bytes"] == "1,234"
    assert rows["parameters.p_min"] == "0.2"


def test_verify_accepts_a_whole_table(table: Path) -> None:
    result = run(verify, table)
    assert (result.exit_code, result.stdout) == (0, f"{table}: ok\n")


def test_verify_names_every_bad_file_and_exits_with_the_code_of_the_worst(table: Path) -> None:
    flipped = table.with_name("flipped.tok")
    data = bytearray(table.read_bytes())
    data[-50] ^= 4
    flipped.write_bytes(data)
    cut = table.with_name("cut.tok")
    cut.write_bytes(table.read_bytes()[:-1])

    result = run(verify, table, flipped, cut)
    assert result.exit_code == 3
    assert result.stdout == f"{table}: ok\n"
    damaged, truncated = result.stderr.splitlines()
    assert damaged.startswith(f"tokalign: {flipped} is damaged")
    assert truncated.startswith(f"tokalign: {cut} is truncated")

    missing = run(verify, flipped, table.with_name("none.tok"), "--json")
    assert missing.exit_code == 4
    report = json.loads(missing.stdout)
    assert not report["ok"]
    assert [file["ok"] for file in report["files"]] == [False, False]


def test_verify_looks_into_tables_that_are_whole_but_wrong(table: Path) -> None:
    other = table.with_name("other.tok")
    other.write_bytes(encode_bundle(Bundle(kind="soup", fingerprints={}, sections={})))
    assert "unknown kind 'soup'" in run(verify, other).stderr
    for kind in ("dictionary", "alignment"):
        roles = ("target",) if kind == "dictionary" else ("target", "draft")
        fingerprints = dict.fromkeys(roles, "ab" * 32)
        other.write_bytes(encode_bundle(Bundle(kind=kind, fingerprints=fingerprints, sections={})))
        assert run(verify, other).exit_code == 3


def test_show_of_a_damaged_or_missing_file_is_an_error(table: Path) -> None:
    missing = run(show, table.with_name("none.tok"))
    assert isinstance(missing.exception, MissingAssetError)
    table.write_bytes(table.read_bytes()[:40])
    assert isinstance(run(show, table).exception, BundleError)


def test_show_says_how_far_a_tokenizer_is_understood(tmp_path: Path) -> None:
    for name, level in (("Gemma", "aligned"), ("Unigram", "by text"), ("WordPiece", "ids only")):
        folder = write_family(tmp_path / name, name)
        result = CliRunner().invoke(show, [str(folder), "--json"])
        told = json.loads(result.stdout)
        assert told["level"] == level
        assert bool(told["why"]) == (level != "aligned")
        assert ("added_tokens_in_text" in told) == (level != "ids only")
    for missing in ("no/such/folder", "nothing.tok", "no-alias"):
        result = CliRunner().invoke(show, [missing])
        assert isinstance(result.exception, MissingAssetError | UsageError)
