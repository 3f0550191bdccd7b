"""`tokalign check` answers from two tokenizers, without any weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_lines import run
from places import DEMO
from small_families import write_family
from small_tables import write_dictionary

from tokalign.cli.texts import language_of_model
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.cost import CostCurve, Machine, Timing, store_curve
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.weights import default_dtype, load_weights
from tokalign.storage import sample_text
from tokalign.tables.header import Header

KEYS = (
    "intersection_pairs draft_vocabulary_size target_vocabulary_size draft_token_coverage "
    "target_token_coverage byte_coverage draft_fertility target_fertility "
    "boundaries_inside_draft_tokens verdict found_dictionaries own_dictionary dictionaries"
)


def check(*words: object) -> dict[str, Any]:
    return dict(run("check", *words, "--json", "--quiet").json)


def test_a_pair_is_counted_and_judged() -> None:
    found = check("--draft", "llama3.2", "--target", "bielik", "--language", "pl")
    assert set(found) >= set(KEYS.split())
    assert list(found)[2:5] == ["verdict", "dictionaries", "this_machine"]
    assert list(found)[-1] == "machines"
    assert found["intersection_pairs"] == 29_110
    assert found["target_vocabulary_size"] == 32_128
    for share in ("draft_token_coverage", "target_token_coverage", "byte_coverage"):
        assert 0.8 < found[share] < 1
    assert "good fit" in found["verdict"]
    machines = found["machines"]
    assert "verifying 2 rows takes 1.11 plain passes" in machines["Apple M4 Pro, 4 bits"]
    assert not any("Vicuna" in said for said in machines.values()), "steps of another drafter"


def test_a_sample_text_is_in_the_language_that_is_asked_for() -> None:
    pair = ("--draft", DEMO / "draft", "--target", DEMO / "target")
    ukrainian, slovak = (check(*pair, "--language", language) for language in ("uk", "sk"))
    assert ukrainian["target_fertility"] > 2 * slovak["target_fertility"]
    told = run("check", *pair).err
    assert "the pack of en is left out until it is compiled for this tokenizer: tok" in told
    assert "the pack of en is left out" in run("check", *pair, sample_text("pl")).err
    assert "the pack" not in run("check", "--target", "bielik", "--language", "pl").err
    assert "text -> the sample in en; --language or a FILE chooses another one" in told
    refused = run("check", *pair, "--language", "crh")
    refused.is_refused(2, "no sample text in language crh", "FILE")


def test_lines_of_a_text_that_cannot_be_read_are_skipped_as_build_does(tmp_path: Path) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "Ala ma kota."}\nno JSON\n')
    ended = run("check", "--target", DEMO / "target", text)
    assert ended.code == 0, ended.err
    assert ended.err.count(f"skipped {text}:2: not JSON") == 1


def test_a_target_alone_is_judged_by_what_drafts_without_a_model() -> None:
    found = check("--target", "bielik")
    assert "No draft model is given" in found["verdict"]
    assert "less on other text if they were made from it" in found["dictionaries"]
    assert "those in pl" not in found["verdict"]
    assert 1 < found["target_fertility"] < 4
    assert "draft_vocabulary_size" not in found
    shown = run("check", "--target", "bielik", "--language", "en").out
    assert shown.startswith("No draft model is given"), "the verdict comes first"
    assert "\ntarget_fertility " in shown
    assert "\nmachines.Apple" in shown


def test_tables_in_the_folder_of_the_model_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where it decodes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    model = shutil.copytree(DEMO / "target", tmp_path / "model")
    assert check("--target", model, "--language", "hu")["found_dictionaries"] is None
    tokenizer = resolve_tokenizer(str(model)).tokenizer
    write_dictionary(model / "hu.dictionary.tok", tokenizer)
    assert check("--target", model, "--language", "hu")["found_dictionaries"] is not None


def test_neither_a_compiled_pack_nor_a_sample_changes_the_language_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (
            Path(folder, "dictionary.tok"),
            Header(
                kind="dictionary",
                fingerprints={},
                parameters={"language": language},
                corpus={"files": [{"name": file, "bytes": 47_116}]},
            ),
        )
        for folder, language, file in (
            ("0123456789abcdef", "en", "en.txt"),
            ("of-sample", "hu", "hu-mini.txt"),
            ("bielik", "pl", "pl.txt"),
        )
    ]
    monkeypatch.setattr("tokalign.tables.finding.find_tables", lambda *_, **__: found)
    assert language_of_model("0123456789abcdef0", None) == "pl"
    del found[2]
    assert language_of_model("0123456789abcdef0", None) == "en"


def test_the_language_of_a_text_is_that_of_the_page_or_the_dictionaries(tmp_path: Path) -> None:
    bielik = resolve_tokenizer("bielik").tokenizer.fingerprint
    assert language_of_model(bielik, None) == "pl", "its dictionary comes with tokalign"
    assert language_of_model("no such", tmp_path) == "en"
    for matter, language in (
        ("language: uk", "uk"),
        ("license: mit\nlanguage:\n- cs\n- fr\ntags: [x]", "cs"),
        ("language: [pl, cs]", "en"),
        ("language_model: uk", "en"),
    ):
        (tmp_path / "README.md").write_text(f"---\n{matter}\n---\n\nlanguage: sk\n")
        assert language_of_model("no such", tmp_path) == language, matter


def test_it_ends_with_what_to_expect_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path))
    text = tmp_path / "t.txt"
    text.write_text("Ala ma kota, a kot ma Alę.\n")
    pair = str(DEMO / "target"), str(DEMO / "draft")
    asked = ("--target", pair[0], "--draft", pair[1], text)
    assert "tokalign calibrate" in check(*asked)["this_machine"]
    fingerprints = [resolve_tokenizer(name).tokenizer.fingerprint for name in pair]
    rows = {m: Timing(t, t, t) for m, t in ((1, 0.05), (2, 0.06))}
    curve = CostCurve(
        name="a",
        source="b",
        context=128,
        rows=rows,
        machine=Machine(device="Apple M9", mlx="1", target="t", draft="d"),
        draft_pass=Timing(0.01, 0.01, 0.01),
        notes={"tokenizers": fingerprints},
    )
    store_curve(curve)
    said = check(*asked)["this_machine"]
    assert "verifying 2 rows takes 1.20 plain passes" in said
    assert "more than 40% are accepted" in said
    store_curve(replace(curve, notes={"tokenizers": [fingerprints[0], "other"]}))
    assert "more than 30% are accepted" in check(*asked)["this_machine"]


@pytest.mark.slow
def test_the_shape_of_a_target_is_timed_and_its_costs_are_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are not read: there are none."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tokalign.evaluate.calibrate.CONTEXT", 32)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / "target" / name, bare)
    kept: list[CostCurve] = []
    monkeypatch.setattr("tokalign.runtime.cost.store_curve", kept.append)
    said = check("--target", bare, "--measure")["this_machine"]
    assert said.startswith("on ")
    assert "plain passes" in said
    model, _ = load_weights(DEMO / "target", dtype=default_dtype())
    assert all(curve.machine == machine_of(model, None) for curve in kept)


def test_a_shape_that_does_not_fit_into_memory_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokalign.names.memory.machine_memory", lambda: 1000)
    refused = run("check", "--target", DEMO / "target", "--measure")
    assert refused.code == 2
    assert "this machine has" in refused.err


def test_a_text_of_any_language_says_what_a_dictionary_of_it_would_save(tmp_path: Path) -> None:
    words = ["ранок", "вечір", "ліс", "море", "дорога", "місто", "вода", "хліб", "книга", "вікно"]
    text = tmp_path / "uk.txt"
    lines = [f"Сьогодні {a} тихий, а {b} далеко за горою." for a in words for b in words] * 3
    text.write_text("\n".join(lines))
    found = check("--draft", str(DEMO / "draft"), "--target", "bielik", str(text))
    assert found["target_fertility"] > 2.5
    own, polish = found["own_dictionary"], found["found_dictionaries"]
    assert polish < 1.2 < 2 < own
    assert "--language CODE" in found["dictionaries"]
    in_folder = check("--draft", str(DEMO / "draft"), "--target", "bielik", str(tmp_path))
    assert in_folder == found
    text.write_text("\n".join(lines[:100]))
    short = check("--draft", str(DEMO / "draft"), "--target", "bielik", str(text))
    assert short["own_dictionary"] is None
    assert "at least 200 lines" in short["dictionaries"]


def test_the_same_tokenizer_needs_no_translation() -> None:
    found = check("--draft", "mistral", "--target", "bielik")
    assert found["same_tokenizer"] is True
    assert found["boundaries_inside_draft_tokens"] == 0
    assert "no translation" in found["verdict"]


def test_it_says_how_each_tokenizer_is_used_and_what_that_leaves(tmp_path: Path) -> None:
    by_ids = str(write_family(tmp_path / "w", "WordPiece"))
    by_text = str(write_family(tmp_path / "u", "Unigram"))
    for draft, target, level in ((by_ids, "bielik", "ids only"), (by_text, "bielik", "by text")):
        told = check("--draft", draft, "--target", target)
        assert told["target_tokenizer"] == "aligned"
        assert told["draft_tokenizer"].startswith(f"{level} (")
        assert ("intersection_pairs" in told) == (level == "by text")
        assert ("by its ids only" in told["verdict"]) == (level == "ids only")
    assert "no translation" in check("--draft", by_ids, "--target", by_ids)["verdict"]
