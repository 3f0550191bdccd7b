"""Texts of a target are what it says by itself, and a killed run ends with the same bytes; a table
of what it finds likely has the mean of its passes, the frequent rows kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from killed_runs import Killed, killed_when
from written_tables import write_bundle

from tokalign.api.assemble import assemble
from tokalign.build.corpus import Corpus, draw_windows
from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.lookup import LogitStore, tail_of
from tokalign.runtime.generate import Generation
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tables.bundle import Bundle
from tokalign.tables.logit_rows import KEPT, LogitRows
from tokalign.tables.opening import open_logit_rows, verify_table
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train import from_model
from tokalign.train.from_model import (
    WINDOW,
    build_logit_table,
    write_texts,
)
from tokalign.train.options import Writing

PROMPTS = ["Wisła jest", "Co to jest chleb?", "Opisz", "Dlaczego zimą pada śnieg, a latem deszcz?"]


@pytest.fixture
def target(demo_pair: tuple[LanguageModel[TargetId], Any]) -> LanguageModel[TargetId]:
    return demo_pair[0]


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(from_model, "TEXTS", 5)
    monkeypatch.setattr(from_model, "AT_ONCE", 3)
    monkeypatch.setattr(from_model, "LENGTH", 20)
    monkeypatch.setattr(from_model, "_FEWEST_TOKENS", 0)
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return Corpus([path])


def test_a_cold_target_writes_what_it_answers_alone(
    target: LanguageModel[TargetId], prompts: Corpus, tmp_path: Path
) -> None:
    decoder = assemble(target, None, DraftingOptions(method="plain"))
    options = Writing(tokens=1, prompts=True, temperature=1e-5)
    answers = set()
    for prompt in PROMPTS:
        request = Request(decoder.prompt(prompt), max_tokens=from_model.LENGTH)
        generation = Generation(decoder, request)
        for _ in generation:
            pass
        ids = [one for one in generation.context.emitted if one not in target.stop_ids]
        answers.add(target.tokenizer.decode(ids))
    write_texts(target, prompts, tmp_path / "a.jsonl", options)
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[1:]]
    assert len(texts) == from_model.TEXTS
    assert set(texts) == answers


@pytest.mark.parametrize("answers", [True, False])
def test_a_killed_run_ends_with_the_same_bytes(
    target: LanguageModel[TargetId], prompts: Corpus, tmp_path: Path, answers: bool
) -> None:
    options = Writing(tokens=150, prompts=answers)
    whole, again = tmp_path / "whole.jsonl", tmp_path / "again.jsonl"
    write_texts(target, prompts, whole, options)
    # in the second part or the third
    stage = killed_when(lambda label, done: label == "the target writes" and done > 120)
    with pytest.raises(Killed):
        write_texts(target, prompts, again, options, stage=stage)
    part = again.with_name("again.jsonl.part")
    part.write_bytes(part.read_bytes() + b"{")  # a part that was not written whole
    write_texts(target, prompts, again, options)
    assert again.read_bytes() == whole.read_bytes()
    before = again.stat().st_mtime_ns
    write_texts(target, prompts, again, options)  # it is there
    assert again.stat().st_mtime_ns == before
    records = [json.loads(line) for line in whole.read_text("utf-8").splitlines()[1:]]
    assert sum(record["tokens"] for record in records) >= 150
    assert len({record["text"] for record in records}) > 5
    other = write_texts(target, prompts, again, Writing(tokens=150, prompts=answers, seed=1))
    assert list(other.lines()) != list(Corpus([whole]).lines())
    assert again.with_name("again.jsonl.previous").read_bytes() == whole.read_bytes()


def test_a_target_without_a_word_is_an_error(
    target: LanguageModel[TargetId], prompts: Corpus, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(from_model, "_FEWEST_TOKENS", 21)
    with pytest.raises(CorpusError, match="has nothing to say"):
        write_texts(target, prompts, tmp_path / "a.jsonl", Writing(tokens=9, prompts=True))


def build_table(target: LanguageModel[TargetId], sentences: Path) -> Bundle:
    return build_logit_table(target, Corpus([sentences]), language="pl", positions=2 * WINDOW)


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
        logits = target.model(mx.array([window]))[0].astype(mx.float32)
        likely = np.array(mx.softmax(logits, axis=-1))
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
    monkeypatch.setattr(from_model, "ROWS", 200)
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
