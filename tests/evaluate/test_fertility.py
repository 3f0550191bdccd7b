"""Fertility counts every token and every word, once."""

from __future__ import annotations

from typing import Any

import pytest
from polish import SENTENCES

from tokalign.evaluate.fertility import measure_fertility
from tokalign.tokenizer.tokenizer import Tokenizer


def test_fertility_counts_every_token_and_word(tokenizer: Tokenizer[Any]) -> None:
    found = measure_fertility(tokenizer, SENTENCES)
    assert found.tokens == sum(len(tokenizer.encode(s)) for s in SENTENCES)
    assert found.tokens_per_word * found.words == pytest.approx(found.tokens)
    assert found.bytes_per_token * found.tokens == pytest.approx(found.bytes)
    assert measure_fertility(tokenizer, SENTENCES * 2).tokens_per_word == found.tokens_per_word
    with pytest.raises(ValueError, match="no word"):
        measure_fertility(tokenizer, [" \n"])
