"""Texts of a target are what it says by itself, and a killed run ends with the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Killed, killed_when

from tokalign.api.assemble import assemble
from tokalign.build.corpus import Corpus, silent
from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train import from_model
from tokalign.train.from_model import write_texts
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
    options = Writing(tokens=5 * 20, prompts=True, temperature=1e-5)
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
    assert set(texts[: from_model.TEXTS]) == answers


def test_few_tokens_take_few_texts(
    target: LanguageModel[TargetId], prompts: Corpus, tmp_path: Path
) -> None:
    """A part of 128 texts took 32,768 tokens, whatever was asked for."""
    write_texts(target, prompts, tmp_path / "a.jsonl", Writing(tokens=1, prompts=True))
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 1 + from_model.AT_ONCE


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
    assert not again.exists()
    assert len(list(again.with_name("again.jsonl.parts").iterdir())) in (1, 2)
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
    names = ("again.jsonl", "again.jsonl.previous", "prompts.txt", "whole.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names]


def test_a_prompt_of_several_lines_is_one(
    target: LanguageModel[TargetId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of a .jsonl file is one text. Each of its lines was answered."""
    asked = list[str]()
    monkeypatch.setattr(from_model, "encode_prompt", lambda _, prompt: asked.append(prompt))
    monkeypatch.setattr(from_model, "encode_chat", lambda *_: [])
    monkeypatch.setattr(from_model, "as_messages", asked.append)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"text": "Popraw:\n\nAla mam kota."}))
    prompts = Corpus([tmp_path / "prompts.jsonl"])
    from_model._openings(target, prompts, Writing(tokens=1, prompts=True), silent)
    assert asked == ["Popraw:\n\nAla mam kota."]


def test_a_target_without_a_word_is_an_error(
    target: LanguageModel[TargetId], prompts: Corpus, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(from_model, "_FEWEST_TOKENS", 21)
    with pytest.raises(CorpusError, match="has nothing to say"):
        write_texts(target, prompts, tmp_path / "a.jsonl", Writing(tokens=9, prompts=True))
