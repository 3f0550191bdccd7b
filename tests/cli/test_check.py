"""`tokalign check` answers from the tokenizers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tokalign.cli.check import command
from tokalign.errors import MissingAssetError, UsageError

KEYS = {
    "intersection_pairs",
    "draft_vocabulary_size",
    "target_vocabulary_size",
    "draft_token_coverage",
    "target_token_coverage",
    "byte_coverage",
    "draft_fertility",
    "target_fertility",
    "boundaries_inside_draft_tokens",
    "verdict",
}


def check(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(command, [*arguments, "--json", "--quiet"], catch_exceptions=False)
    assert result.exit_code == 0
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_pair_is_counted_and_judged() -> None:
    found = check("--draft", "llama3.2", "--target", "bielik")
    assert set(found) >= KEYS
    assert found["intersection_pairs"] == 29_110
    assert found["target_vocabulary_size"] == 32_128
    for share in ("draft_token_coverage", "target_token_coverage", "byte_coverage"):
        assert 0.8 < float(str(found[share])) < 1
    assert "good fit" in str(found["verdict"])


def test_shares_by_hand(tmp_path: Path) -> None:
    """One word: Llama's ` Polska` and Mistral's `▁Pol`, `ska` counted by eye."""
    text = tmp_path / "one.txt"
    text.write_text("Polska\n")
    found = check("--draft", "llama3.2", "--target", "bielik", "--text", str(text))
    assert found["words"] == 1
    assert found["text_bytes"] == len("Polska")
    assert found["draft_fertility"] == found["draft_tokens"]
    assert found["target_fertility"] == found["target_tokens"]


def test_the_same_tokenizer_needs_no_translation() -> None:
    found = check("--draft", "mistral", "--target", "bielik")
    assert found["same_tokenizer"] is True
    assert found["boundaries_inside_draft_tokens"] == 0
    assert "no translation" in str(found["verdict"])


def test_unknown_names_are_refused() -> None:
    for name, error in (("bielk", UsageError), ("./nowhere/at/all", MissingAssetError)):
        with pytest.raises(error):
            CliRunner().invoke(
                command, ["--draft", name, "--target", "bielik"], catch_exceptions=False
            )
