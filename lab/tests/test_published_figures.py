"""What DictSpec, re-created, saves on Polish; the shipped table saves 1.4 times as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.dictspec.builder import find_continuations
from lab.dictspec.table import DictSpecTable
from lab.dictspec.word_ngrams import count_word_ngrams
from tokalign.build.corpus import Corpus
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.statistics import Statistics
from tokalign.storage import TABLES, shipped
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer

CORPUS = ("poquad_wiki", "openstax_pl", "wikisource_pages", "sejm10")


@pytest.fixture(scope="module")
def table(shared_data: Path, bielik: Tokenizer[Any]) -> DictSpecTable:
    files = [shared_data / "corpus" / "train" / f"{name}.txt.zst" for name in CORPUS]
    counted = count_word_ngrams(Corpus(files).lines())
    return find_continuations(counted.most_frequent(200_000), bielik, p_min=0.2)


def emulate(path: Path, target: Tokenizer[Any], table: Dictionary) -> Statistics:
    statistics = Statistics()
    for ids in target.encode_batch(read_texts(path, limit=200)):
        for event in replay(ids, DictionaryDrafter(table)):
            statistics.observe(event)
    return statistics


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize(
    ("text", "speedup", "coverage", "accepted"),
    [("wiki.jsonl", 1.289, 0.658, 0.439), ("sejm.txt", 1.663, 0.840, 0.789)],
)
def test_speedup_coverage_and_mean_accepted_length(
    shared_data: Path,
    bielik: Tokenizer[Any],
    table: DictSpecTable,
    text: str,
    speedup: float,
    coverage: float,
    accepted: float,
) -> None:
    statistics = emulate(shared_data / "corpus" / "dev" / text, bielik, table)
    measured = (
        statistics.tokens_per_round,
        statistics.coverage,
        statistics.mean_accepted_length,
    )
    assert measured == pytest.approx((speedup, coverage, accepted), abs=0.002)
    # Exact up to the rounding of one multiplication.
    assert measured[0] == pytest.approx(1 + measured[1] * measured[2], abs=1e-12)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("text", "published"), [("wiki.jsonl", 0.289), ("sejm.txt", 0.663)])
def test_the_shipped_table_saves_more(
    shared_data: Path, bielik: Tokenizer[Any], text: str, published: float
) -> None:
    """published: what DictSpec's dictionary of 200,000 n-grams saves."""
    file = shipped(TABLES) / "bielik" / "pl.dictionary.tok"
    assert file.stat().st_size <= 5_000_000
    table = open_dictionary(bielik, files=[file])
    assert table is not None
    saved = emulate(shared_data / "corpus" / "dev" / text, bielik, table).tokens_per_round - 1
    assert saved > 1.4 * published
