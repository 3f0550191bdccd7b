"""Positions are taken back from layers of every kind, or not at all."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ChunkedKVCache, ConcatenateKVCache
from random_models import random_model

from tokalign.runtime.mlx.layers import Layers
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.tokenizer.vocabulary import TargetId


def test_a_cache_with_chunks_is_rewound_within_its_chunk_only() -> None:
    chunks = ChunkedKVCache(8)
    for rows in (6, 6):
        chunks.maybe_trim_front()
        part = mx.zeros((1, 1, rows, 4))
        chunks.update_and_fetch(part, part)
    assert (chunks.offset, chunks.start_position) == (12, 0)
    chunks.maybe_trim_front()
    assert chunks.start_position == 4
    layers = Layers([chunks], rewinds=True)
    assert layers.take_back(5, held=12) is None, "position 7 sees its chunk from 0 on"
    assert layers.take_back(4, held=12) == 8


def test_a_cache_that_concatenates_is_rewound() -> None:
    """mlx-lm's ConcatenateKVCache keeps what it was told to trim."""
    model = random_model()
    cache = [ConcatenateKVCache() for _ in model.layers]
    session = TargetModelSession(model, cache=cache)
    mx.eval(session.logits([TargetId(i) for i in (5, 6, 7, 8, 9)]))
    found = np.array(session.logits([TargetId(i) for i in (5, 6, 1, 2)]))
    fresh = np.array(TargetModelSession(model).logits([TargetId(i) for i in (5, 6, 1, 2)]))
    np.testing.assert_allclose(found, fresh, atol=2e-5)
