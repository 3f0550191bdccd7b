"""The most probable ids are those of a sort."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import top_k


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(8, 1500), st.integers(1, 8), st.integers(0, 1000))
def test_the_top_k_are_those_of_a_sort(rows: int, width: int, count: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    ids, values = (np.array(part) for part in top_k(mx.array(logits), count))
    assert ids.shape == values.shape == (rows, count)
    assert_allclose(values, np.take_along_axis(logits, ids, axis=-1))
    assert_allclose(np.sort(values), np.sort(logits)[:, -count:])


def test_rows_of_one_depth_choose_with_the_noise_of_their_position() -> None:
    """As if each row had been chosen by itself, XTC included."""
    logits = mx.array(np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)) * 3
    depths = [0, 1, 2, 1, 3]
    sampling = Sampling(temperature=0.9, top_p=0.95, xtc_probability=0.5, seed=7)
    together, _ = sampling.choose(logits, position=11, depths=depths)
    alone = [
        sampling.choose(logits[row : row + 1], position=11 + depth)[0].item()
        for row, depth in enumerate(depths)
    ]
    assert together.tolist() == alone
