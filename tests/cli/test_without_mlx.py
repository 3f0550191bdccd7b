"""Without mlx, commands that run models say what to install; all others work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import DEMO

WITHOUT_MLX = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mlx", "mlx_lm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from tokalign.cli import main
main()
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_MLX, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Ala ma kota, a kot ma Alę.\n")
    return path


@pytest.mark.parametrize(
    "line", ["decode -p Ala", "chat", "calibrate", "bench --quiet", "train TEXT --output drafter"]
)
def test_a_command_that_runs_models_says_what_to_install(line: str, text: Path) -> None:
    """And says it before it looks for a model, which might be a long download."""
    words = line.replace("TEXT", str(text)).split()
    result = run(*words, "--target", "./no-such-model")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.splitlines() == [
        "tokalign: this command runs models with mlx, which is not installed; "
        "install it with: pip install 'tokalign[mlx]'"
    ]


@pytest.mark.slow
def test_commands_that_only_read_texts_work(text: Path) -> None:
    pair = ("--draft", DEMO / "draft", "--target", DEMO / "target")
    for arguments in (
        ("check", *pair, text, "--json"),
        ("bench", "--method", "copy", *pair[2:], "--text", text, "--json"),
    ):
        result = run(*arguments)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("{")
