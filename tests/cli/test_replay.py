"""`tokalign replay`: a text plays the target, and rounds and acceptance are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from polish import SENTENCES
from random_models import write_model

from tokalign.cli.replay import command
from tokalign.errors import IncompatibleError, UsageError

KEYS = {
    "rounds",
    "accepted_per_round",
    "proposed_per_round",
    "tokens_per_round",
    "draft_acceptance_rate",
    "empty_rounds",
    "draft_passes_per_round",
}


def replay(draft: Path, target: str, text: Path, *more: str) -> dict[str, Any]:
    arguments = ["--draft-model", str(draft), "--target", target, "--text", str(text)]
    result = CliRunner().invoke(
        command, [*arguments, "--json", "--quiet", *more], catch_exceptions=False
    )
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("m") / "draft", vocabulary_size=340)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text("\n".join([SENTENCES[0] * 2, SENTENCES[1] * 2]))
    return tmp_path / "t.txt"


@pytest.mark.parametrize("translation", ["context:3", "intersection", "exact"])
@pytest.mark.slow
def test_a_replay_counts_rounds(draft: Path, text: Path, translation: str, bielik: Any) -> None:
    found = replay(draft, "bielik", text, "--translation", translation, "--num-draft-tokens", "3")
    assert set(found) >= KEYS
    tokens = sum(len(bielik.encode(s * 2)) - 12 for s in SENTENCES[:2])
    assert found["rounds"] * found["tokens_per_round"] == pytest.approx(tokens)
    assert found["tokens_per_round"] == pytest.approx(1 + found["accepted_per_round"])
    assert found["draft_passes_per_round"] <= 3
    fewer = replay(draft, "bielik", text, "--translation", translation, "--limit", "1")
    assert fewer["rounds"] < found["rounds"]


def test_the_same_tokenizer_is_recognized(draft: Path, text: Path) -> None:
    assert replay(draft, str(draft), text)["translation"] == "none"


def test_a_number_of_draft_tokens_is_at_least_one(draft: Path, text: Path) -> None:
    arguments = ["--draft-model", str(draft), "--text", str(text), "--num-draft-tokens", "0"]
    found = CliRunner().invoke(command, arguments)
    assert found.exit_code == 2
    assert "--num-draft-tokens" in found.stderr


def test_options_that_cannot_be_honoured_are_refused(draft: Path, text: Path) -> None:
    def refused(*more: str) -> BaseException | None:
        arguments = ["--draft-model", str(draft), "--target", "bielik", "--text", str(text), *more]
        return CliRunner().invoke(command, arguments).exception

    assert isinstance(refused("--translation", "no"), UsageError)
    assert isinstance(refused("--translation", "none", "--quiet"), IncompatibleError)
