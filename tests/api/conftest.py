"""Two random models with two tokenizers, as keyword arguments of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_models import write_model

from tokalign.runtime.decoder import LanguageModel


@pytest.fixture(scope="package")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", vocabulary_size=420)


@pytest.fixture(scope="package")
def pair(target_folder: Path) -> dict[str, Any]:
    target: LanguageModel[Any] = LanguageModel.from_folder(target_folder)
    draft: LanguageModel[Any] = LanguageModel.from_folder(
        write_model(target_folder.parent / "draft", vocabulary_size=340, seed=1)
    )
    return {
        "model": target.model,
        "tokenizer": target.tokenizer,
        "draft_model": draft.model,
        "draft_tokenizer": draft.tokenizer,
    }
