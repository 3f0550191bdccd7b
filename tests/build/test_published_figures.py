"""The plain re-creation of DictSpec saves on Polish what it is known to save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokalign.build.continuations import find_continuations
from tokalign.build.corpus import Corpus
from tokalign.build.ngrams import count_word_ngrams
from tokalign.cli.texts import read_texts
from tokalign.runtime.draft.dictionary import DictionaryDrafter
from tokalign.runtime.replay import replay
from tokalign.runtime.statistics import Statistics
from tokalign.tables import Continuations
from tokalign.tokenizers import Tokenizer

CORPUS = ("poquad_wiki", "openstax_pl", "wikisource_pages", "sejm10")


@pytest.fixture(scope="module")
def table(shared_data: Path, bielik: Tokenizer[Any]) -> Continuations:
    files = [shared_data / "corpus" / "train" / f"{name}.txt.zst" for name in CORPUS]
    counted = count_word_ngrams(Corpus(files).lines())
    return find_continuations(counted.most_frequent(200_000), bielik, p_min=0.2)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("text", "speedup", "coverage", "accepted"),
    [("wiki.jsonl", 1.21, 0.35, 0.60), ("sejm.txt", 1.49, 0.52, 0.94)],
)
def test_speedup_coverage_and_mean_accepted_length(
    shared_data: Path,
    bielik: Tokenizer[Any],
    table: Continuations,
    text: str,
    speedup: float,
    coverage: float,
    accepted: float,
) -> None:
    statistics = Statistics()
    for ids in bielik.encode_batch(read_texts(shared_data / "corpus" / "dev" / text, limit=200)):
        for event in replay(ids, DictionaryDrafter(table)):
            statistics.observe(event)
    measured = (
        statistics.tokens_per_round,
        statistics.coverage,
        statistics.mean_accepted_length,
    )
    assert measured == pytest.approx((speedup, coverage, accepted), abs=0.02)
    # Exact up to the rounding of one multiplication.
    assert measured[0] == pytest.approx(1 + measured[1] * measured[2], abs=1e-12)
