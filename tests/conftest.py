"""Fixtures: official vocabularies from installed distributions, and shared data where present."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tokalign.registry import resolve_tokenizer
from tokalign.tokenizers import Tokenizer

settings.register_profile("shared", deadline=None)  # a machine shared with others has no clock
settings.load_profile("shared")

ROOT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """Shared corpora, tokenizers and models: $TOKALIGN_SHARED, or ../shared/data by the repo."""
    folder = Path(os.environ.get("TOKALIGN_SHARED", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = shared_folder()
    if folder is None:
        pytest.skip("needs the shared corpora, tokenizers and models")
    return folder


@pytest.fixture(scope="session")
def bielik() -> Tokenizer[Any]:
    return resolve_tokenizer("bielik").tokenizer


@pytest.fixture(scope="session")
def llama() -> Tokenizer[Any]:
    return resolve_tokenizer("llama3.2").tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer[Any]:
    return resolve_tokenizer("qwen2.5").tokenizer


@pytest.fixture(scope="session", params=["bielik", "llama", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer[Any]:
    """Each official tokenizer in turn."""
    found: Tokenizer[Any] = request.getfixturevalue(request.param)
    return found
