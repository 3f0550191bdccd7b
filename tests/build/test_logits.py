"""A table of what a target finds likely: the mean of its passes, with the frequent rows kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from written_tables import write_bundle

from tokalign.api.assemble import assemble
from tokalign.build import logits
from tokalign.build.corpus import Corpus, draw_windows
from tokalign.build.logits import WINDOW, build_logit_table
from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.lookup import LogitStore, tail_of
from tokalign.runtime.mlx.session import expected_after
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tables.bundle import Bundle
from tokalign.tables.logit_rows import KEPT, LogitRows
from tokalign.tables.opening import open_logit_rows, verify_table
from tokalign.tokenizer.vocabulary import TargetId


@pytest.fixture
def target(demo_pair: tuple[LanguageModel[TargetId], Any]) -> LanguageModel[TargetId]:
    return demo_pair[0]


def build_table(target: LanguageModel[TargetId], sentences: Path) -> Bundle:
    return build_logit_table(
        target.tokenizer,
        Corpus([sentences]),
        lambda ids: expected_after(target.model, ids, KEPT),
        model="demo",
        language="pl",
        positions=2 * WINDOW,
    )


def test_rows_are_the_mean_of_what_the_target_expects(
    target: LanguageModel[TargetId], sentences: Path
) -> None:
    store = LogitStore(LogitRows.from_bundle(build_table(target, sentences)))
    windows = draw_windows(
        Corpus([sentences]), target.tokenizer, length=WINDOW, positions=2 * WINDOW, seed=0
    )
    ends = Counter(w[i - 1] for w in windows for i in range(1, WINDOW + 1))
    token, count = ends.most_common()[len(ends) // 4]
    sums = np.zeros(4000)
    for window in windows:
        rows = target.model(mx.array([window]))[0].astype(mx.float32)
        likely = np.array(mx.softmax(rows, axis=-1))
        for row in likely[np.array(window) == token]:
            best = np.argsort(-row)[:KEPT]
            sums[best] += row[best]
    found, expected = _expected(store, token)
    assert count > 1
    assert set(found[:KEPT]) == set(np.argsort(-sums, kind="stable")[:KEPT].tolist())
    assert expected == pytest.approx(sums[found] / count, rel=0.07, abs=1e-3)


def test_the_keys_that_came_most_often_are_kept() -> None:
    ids = [TargetId(i) for i in (5, 6, 5, 6, 5, 7)]
    likely = np.tile(np.arange(100, 100 + KEPT), (len(ids), 1))
    rows = LogitRows.most_frequent(
        np.array([ids], np.uint64),
        likely[None].astype(np.uint64),
        np.full((1, *likely.shape), 0.1),
        4,
        vocabulary_size=105,
    )
    store = LogitStore(rows)
    kept = [key for key in ((5,), (6,), (7,), (5, 6), (6, 5), (5, 7)) if _has(store, *key)]
    assert kept == [(5,), (6,), (5, 6), (6, 5)]
    found, probabilities = _expected(store, TargetId(5))
    assert found == [100, 101, 102, 103, 104]  # ids beyond the vocabulary are out
    assert probabilities == pytest.approx([0.1] * 5, abs=4e-3)


def _expected(store: LogitStore, token: TargetId) -> tuple[list[TargetId], list[float]]:
    """What a store expects after an id, and how probably."""
    found = store.look_up(1)(tail_of([token]))
    assert found is not None
    ids, odds = zip(*found, strict=True)
    return list(ids), [1 / (1 + exp(-x)) for x in odds]


def _has(store: LogitStore, *key: int) -> bool:
    return store.look_up(len(key))(tail_of([TargetId(i) for i in key])) is not None


def test_a_decoder_begins_with_the_rows_of_its_language(
    target: LanguageModel[TargetId],
    sentences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    monkeypatch.setattr(logits, "MOST_ROWS", 200)
    bundle = build_table(target, sentences)
    for language in ("pl", "uk"):
        path = tmp_path / "demo" / f"{language}.logits.tok"
        path.parent.mkdir(exist_ok=True)
        parameters = {**bundle.parameters, "language": language}
        write_bundle(path, replace(bundle, parameters=parameters))
        verify_table(path)
    notes: list[str] = []
    options = DraftingOptions(method="hybrid", language=None)
    store = LogitStore()
    decoder = assemble(target, None, options, note=notes.append)
    assert [note for note in notes if note.startswith("logits -> ")]
    assert decoder.drafting.known_rows is not None
    assert len(decoder.drafting.known_rows) == 400
    request = Request(decoder.prompt("Ala"), logits=store)
    size = len(target.tokenizer.vocabulary)
    for _ in range(2):  # the second request finds them there
        drafting = decoder.drafting.for_request(request, size)
        assert drafting.logits is store
        assert 0 < len(store) <= 200
    rows = open_logit_rows(target.tokenizer, languages=["uk"])
    assert rows is not None
    assert len(rows) == 200
    assert open_logit_rows(target.tokenizer, languages=["cs"]) is None


def test_a_corpus_without_a_window_is_refused(
    target: LanguageModel[TargetId], tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("Ala ma kota.\n")
    with pytest.raises(CorpusError, match="fewer than 256 tokens"):
        build_table(target, tmp_path / "short.txt")
