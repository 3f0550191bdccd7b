"""50,000 ids drafted by everything at once, a server and grammars among it: none differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx_lm
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
from places import DEMO

from lab.benchmarks.lossless import benchmark


@pytest.mark.long
def test_no_output_differs(tmp_path: Path) -> None:
    model: Any = mlx_lm.load(str(DEMO / "target"))[0]
    folders = [
        write_block_drafter(
            tmp_path / str(number), random_block_drafter(model, config=config), config
        )
        for number, config in enumerate(
            (block_config(model), second_config(model), dspark_config(model))
        )
    ]
    config = eagle_config(model)
    folders.append(write_eagle(tmp_path / "eagle3", random_eagle(model, config), config))
    drafters = [
        word for folder in (*folders, DEMO / "drafter") for word in ("--drafter", str(folder))
    ]
    models = ["--target", str(DEMO / "target"), "--draft", str(DEMO / "draft")]
    result = CliRunner().invoke(benchmark, [*models, *drafters])
    assert result.exit_code == 0, result.output
    assert "0 outputs differ" in result.output
