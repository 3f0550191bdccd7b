"""Two random models with two tokenizers, as keyword arguments of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokalign.runtime.decoder import LanguageModel


@pytest.fixture(scope="package")
def pair(models: dict[str, str]) -> dict[str, Any]:
    target: LanguageModel[Any] = LanguageModel.from_folder(Path(models["target"]))
    draft: LanguageModel[Any] = LanguageModel.from_folder(Path(models["draft"]))
    return {
        "model": target.model,
        "tokenizer": target.tokenizer,
        "draft_model": draft.model,
        "draft_tokenizer": draft.tokenizer,
    }
