"""Fertility, parity and Pearson's r."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from polish import SENTENCES

from tokalign.evaluate.fertility import measure_fertility, pearson
from tokalign.tokenizer.tokenizer import Tokenizer

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def test_fertility_counts_every_token_and_word(tokenizer: Tokenizer[Any]) -> None:
    found = measure_fertility(tokenizer, SENTENCES)
    assert found.tokens == sum(len(tokenizer.encode(s)) for s in SENTENCES)
    assert found.tokens_per_word * found.words == pytest.approx(found.tokens)
    assert found.bytes_per_token * found.tokens == pytest.approx(found.bytes)
    assert measure_fertility(tokenizer, SENTENCES * 2).tokens_per_word == found.tokens_per_word
    with pytest.raises(ValueError, match="no word"):
        measure_fertility(tokenizer, [" \n"])


@given(numbers, st.randoms(use_true_random=False))
def test_r_is_numpys(xs: list[float], random: Any) -> None:
    ys = [x + random.uniform(-50, 50) for x in xs]
    assume(np.std(xs) > 1e-3 and np.std(ys) > 1e-3)
    assert pearson(xs, ys) == pytest.approx(np.corrcoef(xs, ys)[0, 1], abs=1e-9)
    assert pearson(xs, [-x for x in xs]) == pytest.approx(-1)


def test_r_needs_two_that_vary() -> None:
    assert isnan(pearson([1, 1], [2, 3]))
    with pytest.raises(ValueError, match="at least 2"):
        pearson([1], [2])
