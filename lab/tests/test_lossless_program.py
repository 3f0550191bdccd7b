"""50,000 ids drafted by everything at once, a server and grammars among it: none differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from block_drafters import (
    block_config,
    dspark_config,
    random_block_drafter,
    second_config,
    write_block_drafter,
)
from click.testing import CliRunner
from eagle_drafters import eagle_config, random_eagle, write_eagle
from random_drafters import random_drafter, write_drafter
from random_models import write_model

from lab.benchmarks.lossless import benchmark
from tokalign.runtime.decoder import LanguageModel
from tokalign.tokenizer.vocabulary import TargetId

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


@pytest.mark.long
def test_no_output_differs(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", vocabulary_size=420)
    draft = write_model(tmp_path / "draft", vocabulary_size=340, seed=1)
    for name, more in (
        ("tokenizer_config.json", {"chat_template": TEMPLATE}),
        ("config.json", {"max_position_embeddings": 4096}),
    ):
        config = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps(config | more))
    loaded: LanguageModel[TargetId] = LanguageModel.from_folder(target)
    model, folders = loaded.model, [tmp_path / "recurrent"]
    write_drafter(folders[0], random_drafter(model), loaded)
    for make in (block_config, second_config, dspark_config):
        drafter = random_block_drafter(model, config=make(model))
        folders.append(write_block_drafter(tmp_path / make.__name__, drafter, make(model)))
    config = eagle_config(model)
    folders.append(write_eagle(tmp_path / "eagle3", random_eagle(model, config), config))
    drafters = [word for folder in folders for word in ("--drafter", str(folder))]
    models = ["--target", str(target), "--draft", str(draft)]
    result = CliRunner().invoke(benchmark, [*models, *drafters])
    assert result.exit_code == 0, result.output
    assert "0 outputs differ" in result.output
