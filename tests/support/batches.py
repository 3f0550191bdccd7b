"""Batches of requests as vLLM hands them over, and dictionaries that know some of their text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from places import DEMO
from small_tables import counted

from tokalign.storage import POLISH, sample_text
from tokalign.tables.backoff import BackoffTable
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

LONGEST = 400


@dataclass(frozen=True)
class Batch:
    """texts: the ids of each request."""

    texts: list[list[int]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """As vLLM has them."""
        return np.array([len(text) for text in self.texts], dtype=np.int64)

    @property
    def rows(self) -> NDArray[np.int32]:
        """As vLLM has them: after the end of a text is what another request left there."""
        rows = np.random.default_rng(0).integers(0, 300, (len(self.texts), LONGEST))
        for row, text in zip(rows, self.texts, strict=True):
            row[: len(text)] = text
        return rows.astype(np.int32)


@cache
def corpus_lines() -> list[list[int]]:
    """The lines of the shipped Polish corpus as ids of the demo target's tokenizer."""
    tokenizer: Tokenizer[Any] = read_tokenizer(DEMO / "target")
    lines = sample_text(POLISH).read_text("utf-8").splitlines()
    return [list(tokenizer.encode(line)) for line in lines if line]


@cache
def two_tables() -> dict[str, BackoffTable]:
    """A dictionary of the first half of the corpus, and one of the second."""
    lines = corpus_lines()
    half = len(lines) // 2
    halves = {"dictionary:a": lines[:half], "dictionary:b": lines[half:]}
    return {
        name: counted([token for line in part for token in line], 4000, 60_000)
        for name, part in halves.items()
    }


def make_batch(size: int = 40, seed: int = 0) -> Batch:
    """Requests of a few lines, some of which come twice, cut anywhere; the first has one id."""
    rng, lines = np.random.default_rng(seed), corpus_lines()
    texts = [[5]]
    while len(texts) < size:
        few = rng.integers(0, len(lines), rng.integers(1, 5)).tolist()
        again = few[: int(rng.integers(0, 3))]
        text = [token for line in (*few, *again) for token in lines[line]]
        texts.append(text[: min(len(text), int(rng.integers(2, LONGEST)))])
    return Batch(texts)
