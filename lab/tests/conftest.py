"""The fixtures of the product's tests."""

from __future__ import annotations

from fixtures import (  # noqa: F401
    bielik,
    demo_pair,
    llama,
    no_cache_of_the_user,
    no_tables_of_the_user,
    official_vocabularies_are_read_once,
    qwen,
    sentences,
    shared_data,
    tokenizer,
)
