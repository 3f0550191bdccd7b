"""`tokalign bench --text`: texts play the target; figures compared with a count by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_lines import Ended, run
from polish import SENTENCES
from small_tables import dictionary_bundle
from written_tables import write_bundle

from tokalign.tokenizer.tokenizer import Tokenizer

TEXT = "Rada Ministrów przyjęła projekt ustawy"


@pytest.fixture
def dictionary(tmp_path: Path, bielik: Tokenizer[Any]) -> Path:
    """A dictionary that knows what follows `Rada`: three tokens right and one wrong."""
    ids = bielik.encode(TEXT)
    first = len(bielik.encode("Rada"))
    entries = {tuple(ids[:first]): ((*ids[first : first + 3], 5), 0.5)}
    bundle = dictionary_bundle(entries, 32_128, bielik.fingerprint)
    write_bundle(tmp_path / "pl.dictionary.tok", bundle)
    return tmp_path / "pl.dictionary.tok"


def play(text: Path, *more: object, target: object = "bielik") -> Ended:
    return run("bench", "--target", target, "--text", text, *more)


def figures(text: Path, *more: object) -> dict[str, Any]:
    """Those of the only condition."""
    [condition] = play(text, *more, "--json", "--quiet").json["conditions"]
    return dict(condition)


def test_rounds_match_a_count_by_hand(
    dictionary: Path, tmp_path: Path, bielik: Tokenizer[Any]
) -> None:
    text = tmp_path / "t.jsonl"
    text.write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"text": "Nic."}) + "\n")
    tokens = len(bielik.encode(TEXT)) + len(bielik.encode("Nic."))
    asked = ["--dictionary", dictionary, "--method", "dictionary", "--prompt-tokens", "0"]
    found = figures(text, *asked, "-k", "8")
    assert found["generation_tokens"] == tokens
    assert found["rounds"] == tokens - 3
    assert found["coverage"] == 1 / (tokens - 3)
    assert found["mean_accepted_length"] == 3
    assert found["draft_acceptance_rate"] == 3 / 4
    assert found["tokens_per_round"] == tokens / (tokens - 3)
    first = figures(text, *asked, "-k", "8", "--limit", "1")
    assert first["generation_tokens"] == len(bielik.encode(TEXT))
    assert figures(text, *asked, "-k", "2")["rounds"] == tokens - 2
    rest = figures(text, *asked[:-1], "3", "-k", "8", "--limit", "1")
    assert rest["generation_tokens"] == first["generation_tokens"] - 3
    play(text, *asked[:-1], tokens).is_refused(2, "fewer --prompt-tokens")


@pytest.fixture
def two_texts(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text("\n".join([SENTENCES[0] * 2, SENTENCES[1] * 2]))
    return tmp_path / "t.txt"


@pytest.mark.parametrize("translation", ["context:3", "intersection", "exact"])
def test_a_draft_model_drafts(
    models: dict[str, str], two_texts: Path, translation: str, bielik: Tokenizer[Any]
) -> None:
    asked = ["--draft", models["draft"], "--method", translation, "-k", "3"]
    found = figures(two_texts, *asked)
    assert (found["name"], found["k"]) == (translation, 3)
    tokens = sum(len(bielik.encode(s * 2)) - 12 for s in SENTENCES[:2])
    assert found["generation_tokens"] == tokens
    assert 0 < found["draft_passes_per_round"] <= 3
    assert figures(two_texts, *asked, "--limit", "1")["rounds"] < found["rounds"]


def test_without_a_choice_every_condition_is_measured(
    models: dict[str, str], two_texts: Path
) -> None:
    draft = models["draft"]
    asked = ["--draft", draft, "-k", "2", "--limit", "1", "--json", "--quiet"]
    found = play(two_texts, *asked, target=draft).json
    assert {"none", "copy", "hybrid"} <= {row["name"] for row in found["conditions"]}
    assert (found["target"], found["draft"], found["texts"]) == (draft, draft, 1)
