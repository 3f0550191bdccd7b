"""Teaching a draft model: the loss is the sum over covers, and a run does what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from killed_runs import Killed, files, killed_when
from mlx_lm.models.llama import Model
from polish import SENTENCES
from random_models import random_model, write_model

from tokalign.build.corpus import Corpus
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.whole_text import DraftReading
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import LabelledCorpus, Labeller, label_corpus
from tokalign.train.labels import Labels
from tokalign.train.lessons import MOST_FACTORS, Lesson, Lessons
from tokalign.train.options import MOST_PROBABLE, FitOptions, Kind, Labelling, LabelOptions
from tokalign.train.run import Evaluation, fit
from tokalign.train.teaching import DraftLearner, loss_of, marginals

WINDOW = 32
TEXT = Labelling(kind="text", future=0, probable=MOST_PROBABLE)
FIT = FitOptions(
    epochs=6, batch=64, candidates=None, learning_rate=1e-2, evaluations=6, patience=None
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft model whose tokens are shorter."""
    place = tmp_path_factory.mktemp("m")
    write_model(place / "target", vocabulary_size=420)
    return place / "target", write_model(place / "draft", vocabulary_size=360, seed=1)


@pytest.fixture(scope="module")
def pair(folders: tuple[Path, Path]) -> Pair:
    target, draft = (LanguageModel[Any].from_folder(folder).tokenizer for folder in folders)
    return Pair(target, draft)


def brute_force(pair: Pair, labels: Labels, row_of: Callable[[int], Any]) -> list[float]:
    """The probability of each label, from the definition: every token of the draft is looked at."""
    [text] = labels.texts(WINDOW)
    reading, found = DraftReading(pair, text.ids[:, 0].tolist()), []
    tokens, encode = pair.draft.vocabulary.tokens, pair.target.encoder.encode
    end = 0

    def mass(row: int, prefix: bytes, rest: Callable[[bytes], bool]) -> float:
        fit = [i for i, token in enumerate(tokens) if token.startswith(prefix) and token]
        return float(sum(row_of(row)[i] for i in fit if rest(tokens[i][len(prefix) :])))

    for token, label in text.ids[:, :2].tolist():
        end += len(pair.target.vocabulary.tokens[token])
        if label < 0:
            continue
        data = pair.target.vocabulary.tokens[label]
        row, start = -1, 0  # the token that the boundary lies in, and where it begins
        while start + len(reading.spelled[row + 1]) <= end:
            row, start = row + 1, start + len(reading.spelled[row + 1])
        if row < 0:
            continue
        partial = reading.spelled[row + 1][: end - start]
        begins = lambda rest, data=data, label=label: encode(data + rest)[0] == label  # noqa: E731
        probability = mass(row, partial + data, begins)
        spelled, product, count, at_row = partial + data, 1.0, 0, row
        while len(reading.spelled[at_row + 1]) < len(spelled):
            product *= row_of(at_row)[reading.ids[at_row + 1]]
            spelled = spelled[len(reading.spelled[at_row + 1]) :]
            at_row, count = at_row + 1, count + 1
        if 0 < count < MOST_FACTORS:
            probability += product * mass(at_row, spelled, begins)
        found.append(probability / mass(row, partial, lambda _: True) if partial else probability)
    return found


@pytest.mark.parametrize("sentence", SENTENCES[:2])
@pytest.mark.parametrize("longer", ["target", "draft"])
def test_the_marginal_is_the_sum_over_all_covers(pair: Pair, sentence: str, longer: str) -> None:
    """longer: whose tokens are. A boundary lies within one, or a label takes several."""
    if longer == "draft":
        pair = Pair(pair.draft, pair.target)  # type: ignore[arg-type]
    window = pair.target.encode(sentence * 4)[:WINDOW]
    labels = Labeller(None, TEXT).label(window)
    every = [text for text in SENTENCES for _ in range(9)]  # so that all draft tokens are in use
    extra = [Labeller(None, TEXT).label(pair.target.encode(t)) for t in every]
    texts = [*labels.texts(WINDOW), *[one.texts(len(one.ids))[0] for one in extra]]
    size = len(pair.draft.vocabulary)
    options = FitOptions(batch=1, candidates=None)
    lessons = Lessons(pair, texts, options, window=WINDOW, vocabulary_size=size)
    lessons.part = lambda _: np.array([0])  # type: ignore[method-assign]
    lesson = lessons[0]
    logits = mx.random.normal((lesson.read.size, size), key=mx.random.key(3)) * 2
    rows = np.array(mx.softmax(logits, axis=-1), np.float64)
    used = np.isin(
        np.arange(size), [i for t in texts for i in DraftReading(pair, t.ids[:, 0].tolist()).ids]
    )
    expected = brute_force(pair, labels, lambda row: rows[row] * used)
    found = np.array(marginals(logits, lesson))[:, 0]
    assert len(found) > 20
    assert (lesson.allowed > 0).any() == (longer == "draft")
    assert (lesson.factors[:, 0] > 1).any() == (longer == "target")
    assert found == pytest.approx([one for one in expected if one > 0], rel=1e-4)
    loss = float(loss_of(logits, lesson, ("marginal",)))
    assert loss == pytest.approx(-np.log(found).mean(), rel=1e-5)


Teach = Callable[..., list[Evaluation]]


@pytest.fixture(scope="module")
def teach(folders: tuple[Path, Path], sentences: Path) -> Teach:
    """Labels and teaches into a place; returns what was measured on the way."""

    def run(
        place: Path, options: FitOptions = FIT, *, kind: Kind = "text", kill_at: int = -1
    ) -> list[Evaluation]:
        target: LanguageModel[TargetId] = LanguageModel.from_folder(folders[0])
        draft: LanguageModel[Any] = LanguageModel.from_folder(folders[1])
        how = {"positions": 608, "held_out": 64, "window": WINDOW}
        wanted = LabelOptions(**how, labelling=replace(TEXT, kind=kind))
        corpus = Corpus([sentences])
        labels = label_corpus(target, corpus, place / "work", wanted)
        pair, found = Pair(target.tokenizer, draft.tokenizer), list[Evaluation]()
        fit(
            DraftLearner(draft, pair, labels, options),
            place / "draft",
            place / "work",
            stage=killed_when(lambda label, done: label == "training" and done == kill_at),
            report=found.append,
        )
        return found

    return run


@pytest.mark.parametrize("lora", [None, 8])
def test_it_learns_and_goes_on_where_it_was_killed(
    teach: Teach, tmp_path: Path, lora: int | None
) -> None:
    options = replace(FIT, lora=lora)
    found = teach(tmp_path / "whole", options)
    assert found[-1].loss < (0.85 if lora is None else 0.95) * found[0].loss
    if lora is None:
        assert found[-1].accepted_per_round > 0.05 > found[0].accepted_per_round
    for at in (9, 23):
        with pytest.raises(Killed):
            teach(tmp_path / "parts", options, kill_at=at)
    rest = teach(tmp_path / "parts", options)
    assert rest[1:] == found[-len(rest) + 1 :]
    assert 1 < len(rest) < len(found)
    assert files(tmp_path / "parts" / "draft") == files(tmp_path / "whole" / "draft")
    model = LanguageModel[Any].from_folder(tmp_path / "whole" / "draft").model
    assert not [name for name, _ in model.named_modules() if "lora" in name]


@pytest.mark.parametrize("kind", ["tied", "untied", "quantized"])
def test_a_batch_has_the_loss_that_all_logits_give(pair: Pair, kind: str) -> None:
    """Only some rows of embedding and head are looked at, where the model's end is as usual."""
    size = len(pair.draft.vocabulary)
    arguments = random_model(1, vocabulary=size).args
    model: Any = Model(replace(arguments, tie_word_embeddings=kind == "tied", intermediate_size=64))
    if kind == "quantized":
        nn.quantize(model, group_size=32, bits=8)
    labels = Labeller(None, TEXT).label(pair.target.encode(SENTENCES[0]))
    how = LabelOptions(window=len(labels.ids))
    corpus = LabelledCorpus(training=labels, held_out=labels, recipe={}, options=how)
    draft = LanguageModel(model=model, tokenizer=pair.draft)
    options = replace(FIT, candidates=40, lora=4)
    learner = DraftLearner(draft, pair, corpus, options)
    batch = learner.batches[0]
    assert len(batch.candidates) < size / 2
    logits = model(mx.array(batch.read)).reshape(batch.read.size, -1)
    expected = loss_of(logits[:, mx.array(batch.candidates)], batch, FIT.losses)
    assert learner.loss(batch).item() == pytest.approx(expected.item(), rel=1e-4)
    assert (learner._ends is None) == (kind == "quantized")


@pytest.mark.parametrize("candidates", [None, 40])
def test_embeddings_are_learned_only_of_tokens_that_occur(
    folders: tuple[Path, Path], pair: Pair, teach: Teach, tmp_path: Path, candidates: int | None
) -> None:
    teach(tmp_path, replace(FIT, epochs=2, evaluations=1, candidates=candidates))
    texts = [pair.target.encode(sentence) for sentence in SENTENCES]
    labels = [Labeller(None, TEXT).label(ids) for ids in texts]
    read = {i for one in labels for i in DraftReading(pair, one.ids[:, 0].tolist()).ids}
    own, taught = (
        mx.load(str(folder / "model.safetensors")) for folder in (folders[1], tmp_path / "draft")
    )
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        moved = (own[name] != taught[name]).any(axis=1)  # type: ignore[index, union-attr]
        changed = set(np.flatnonzero(np.array(moved)).tolist())
        assert 20 < len(changed) < len(moved) / 2
        assert changed <= read


def test_the_marginal_among_candidates_estimates_the_whole_one(pair: Pair) -> None:
    labels = Labeller(None, TEXT).label(pair.target.encode(SENTENCES[0]))
    texts = labels.texts(len(labels.ids))
    size = len(pair.draft.vocabulary)

    def lesson_of(candidates: int | None, seed: int = 0) -> Lesson:
        options = FitOptions(batch=1, candidates=candidates, seed=seed)
        return Lessons(pair, texts, options, window=WINDOW, vocabulary_size=size)[0]

    read = lesson_of(None).read
    often = mx.array(
        np.log(0.01 + np.bincount(read[0], minlength=size)), mx.float32
    )  # as a model's
    logits = often + 0.5 * mx.random.normal((read.size, size), key=mx.random.key(3))
    whole = np.array(marginals(logits, lesson_of(None)))[:, 0]
    estimates = []
    for seed in range(60):
        lesson = lesson_of(30, seed)
        assert len(lesson.candidates) < size / 2
        estimates.append(np.array(marginals(logits[:, mx.array(lesson.candidates)], lesson))[:, 0])
    assert np.std(estimates, axis=0).min() > 0
    assert np.mean(estimates, axis=0) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("loss", ["kl", "acceptance", "text"])
def test_every_other_loss_is_learned(teach: Teach, tmp_path: Path, loss: Any) -> None:
    options = replace(FIT, losses=(loss,), epochs=3)
    found = teach(tmp_path, options, kind="greedy")
    assert found[-1].loss < 0.98 * found[0].loss


@pytest.mark.parametrize("lora", [None, 8])
def test_the_result_keeps_a_share_of_the_own_weights(
    folders: tuple[Path, Path], teach: Teach, tmp_path: Path, lora: int | None
) -> None:
    options = replace(FIT, lora=lora, epochs=2, evaluations=1)
    teach(tmp_path / "0", options)
    teach(tmp_path / "1", replace(options, keep=0.25))
    own, trained, mean = (
        mx.load(str(folder / "model.safetensors"))
        for folder in (folders[1], tmp_path / "0" / "draft", tmp_path / "1" / "draft")
    )
    changed = [name for name in own if not mx.array_equal(own[name], trained[name])]
    assert len(changed) > 4
    for name, weight in mean.items():
        assert mx.allclose(weight, 0.25 * own[name] + 0.75 * trained[name], 1e-4, 1e-5), name
