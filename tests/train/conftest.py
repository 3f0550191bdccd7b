"""A small target on disk, and runs that train drafters for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_models import random_model, write_model
from training_runs import Train

from tokalign.runtime.decoder import LanguageModel


@pytest.fixture(scope="package")
def target(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel[Any]:
    folder = write_model(
        tmp_path_factory.mktemp("m") / "model",
        vocabulary_size=340,
        make=lambda size, seed: random_model(seed, vocabulary=size, layers=3),
    )
    return LanguageModel.from_folder(folder)


@pytest.fixture(scope="package")
def train(target: LanguageModel[Any], sentences: Path) -> Train:
    return Train(target, sentences)
