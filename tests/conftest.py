"""The fixtures, and which tests the fast lane leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import (  # noqa: F401
    bielik,
    demo_pair,
    echo,
    llama,
    models,
    no_cache_of_the_user,
    no_tables_of_the_user,
    official_vocabularies_are_read_once,
    qwen,
    sentences,
    shared_data,
    tokenizer,
)

WHOLE_PROGRAMS = (
    "api",
    "build/test_pack.py",
    "build/test_pipeline.py",
    "cli",
    "hostile",
    "names",
    "serve",
    "train",
)
"""Where tests build, download, run, serve, attack or train as a user does: not in the fast lane."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [Path(__file__).parent / name for name in WHOLE_PROGRAMS]
    for item in items:
        if any(item.path.is_relative_to(place) for place in places):
            item.add_marker(pytest.mark.slow)
