"""Published drafters are found by the target's name, named in one line, and downloaded if asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from block_drafters import block_config, random_block_drafter, write_block_drafter
from command_lines import run
from fake_hub import Hub, serve_hub, write_snapshot
from random_models import write_model

from tokalign.errors import MissingAssetError
from tokalign.names.published_drafters import named_or_published, published_drafters, published_for

REPOSITORY = "z-lab/Qwen3-8B-DFlash-b16"
PROMPT = ("-p", "Wisła jest", "--ignore-chat-template", "-m", 12, "--json")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in a folder that is called as a conversion of Qwen3-8B; nothing is cached."""
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "tables"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return write_model(tmp_path / "Qwen3-8B-4bit", vocabulary_size=420)


@pytest.fixture
def files(target: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a drafter for that model."""
    model: Any = mlx_lm.load(str(target))[0]
    folder = write_block_drafter(
        tmp_path / "made", random_block_drafter(model), block_config(model)
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("bielik", "speakleash/Bielik-11B-v3.0-DFlash"),
        ("speakleash/Bielik-11B-v3.0-Instruct-MLX-8bit", "speakleash/Bielik-11B-v3.0-DFlash"),
        ("mlx-community/Qwen3-8B-4bit", REPOSITORY),
        ("someone/qwen3-8b-mlx-4bit-dwq", REPOSITORY),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-bf16", published_drafters()[3].repository),
        ("mistral-small", "cvalgian/EAGLE3-Mistral-Small-24B-Instruct-2501"),
        ("mlx-community/gemma-4-e4b-it-4bit", "google/gemma-4-E4B-it-assistant"),
        ("Qwen/Qwen3-8B-Base", None),
        ("Qwen/Qwen3-4B-Instruct-2507", None),
        ("bielik-pl", None),
        ("bielik-minitron", None),
        ("bielik-7b", None),
    ],
)
def test_a_target_is_known_in_every_format(name: str, repository: str | None) -> None:
    published = published_for(name)
    assert (published and published.repository) == repository


def test_a_snapshot_in_the_cache_is_known_by_its_repository(tmp_path: Path) -> None:
    folder = write_snapshot(tmp_path, "mlx-community/Qwen3-4B-8bit", {"config.json": b"{}"})
    published = published_for(folder)
    assert published is not None
    assert published.repository == "z-lab/Qwen3-4B-DFlash-b16"


def test_every_entry_is_a_repository_and_is_listed_once() -> None:
    names = [name for one in published_drafters() for name in (one.repository, *one.also)]
    assert len(set(names)) == len(names)
    targets = [name for one in published_drafters() for name in one.targets]
    assert all(name.count("/") == 1 for name in (*names, *targets))


def test_it_is_named_and_nothing_is_downloaded(target: Path, tmp_path: Path) -> None:
    told = run("decode", "--target", target, *PROMPT)
    assert told.code == 0, told.err
    line = next(line for line in told.err.splitlines() if REPOSITORY in line)
    assert "(DFlash, MIT, 2.1 GB); drafter auto downloads and uses it" in line
    assert not (tmp_path / "hub").exists()
    shown = run("tables", "show", target).out
    assert f"{REPOSITORY} (DFlash, MIT, 2.1 GB)" in shown


def test_where_it_is_downloaded_it_drafts(
    target: Path, tmp_path: Path, files: dict[str, bytes]
) -> None:
    write_snapshot(tmp_path / "hub", REPOSITORY, files)
    plain = run("decode", "--target", target, "--method", "plain", *PROMPT).json
    for named in ((), ("--drafter", "auto")):
        how = ("--method", "drafter", "--num-draft-tokens", 3)
        told = run("decode", "--target", target, *how, *named, *PROMPT)
        assert REPOSITORY not in told.err, "it is not named as one to download"
        assert told.json["token_ids"] == plain["token_ids"]
        assert told.json["per_source"]["block"]["proposed"] > 0


def test_one_in_the_cache_that_does_not_fit_is_said_and_left_out(
    target: Path, tmp_path: Path, files: dict[str, bytes]
) -> None:
    config = {**json.loads(files["config.json"]), "num_target_layers": 36}
    files["config.json"] = json.dumps(config).encode()
    write_snapshot(tmp_path / "hub", REPOSITORY, files)
    told = run("decode", "--target", target, *PROMPT)
    assert told.code == 0
    assert "36 layers" in told.err
    assert "it is not used" in told.err
    run("decode", "--target", target, "--drafter", "auto", *PROMPT).is_refused(3, "36 layers")


def test_what_auto_cannot_find_is_one_line_before_a_model_is_loaded(
    target: Path, tmp_path: Path
) -> None:
    told = run("decode", "--target", target, "--drafter", "auto", *PROMPT)
    told.is_refused(4, f"{REPOSITORY} is not in the Hub cache", "try again once online")
    assert "models pull" not in told.err, "which takes models alone"
    other = target.rename(tmp_path / "mine")
    told = run("decode", "--target", other, "--drafter", "auto", *PROMPT)
    told.is_refused(4, "no published drafter of", "name one")
    with pytest.raises(MissingAssetError, match="this target"):
        named_or_published("auto", None)


@pytest.mark.slow
def test_auto_downloads_it_once(target: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    """In processes of their own, because the Hub's library reads its settings at import."""

    def decoded(**settings: str) -> subprocess.CompletedProcess[str]:
        words = ["decode", "--target", target, "--drafter", "auto", *PROMPT]
        command = [sys.executable, "-m", "tokalign", *map(str, words)]
        places = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": address}
        environment = os.environ | places | settings
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=True)

    hub = Hub()
    with serve_hub({REPOSITORY: files}, hub) as address:
        first = decoded()
        asked = len(hub.tokens)
        again = decoded(HF_HUB_OFFLINE="1")
    assert asked
    assert list((tmp_path / "hub").rglob("model.safetensors"))
    assert json.loads(first.stdout)["token_ids"] == json.loads(again.stdout)["token_ids"]
