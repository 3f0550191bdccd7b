"""Windows of a corpus, and what a target says of them: what it would say by itself, id by id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from labelled import random_labels
from random_models import random_model
from small_tokenizers import trained_tokenizer
from zoo import zoo_model

from tokalign.build.corpus import Corpus, draw_windows
from tokalign.errors import CorpusError, IncompatibleError, UsageError
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import Labeller
from tokalign.train.options import Labelling

WORDS = ["rzeka", "most", "droga", "las", "dom", "pies", "kot", "chleb"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer[Any]:
    return trained_tokenizer(340)


def corpus(folder: Path, lines: int = 400) -> Corpus:
    for name in ("a.txt", "b.txt"):
        text = [f"{name[0]} {WORDS[n % 8]} {WORDS[n % 7]} {n}" for n in range(lines)]
        (folder / name).write_text("\n".join(text) + "\n", "utf-8")
    return Corpus([folder / "a.txt", folder / "b.txt"])


def test_windows_have_one_length_and_whole_paragraphs_from_all_files(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    def draw(seed: int) -> list[list[Any]]:
        return draw_windows(corpus(tmp_path), tokenizer, length=32, positions=1000, seed=seed)

    windows = draw(1)
    assert draw(1) == windows != draw(2)
    assert len(windows) == 32
    assert {len(window) for window in windows} == {32}
    text = b"".join(tokenizer.vocabulary.tokens[i] or b"" for w in windows for i in w).decode()
    lines = [line.strip() for line in text.splitlines()[1:-1]]
    known = {line for path in tmp_path.iterdir() for line in path.read_text("utf-8").splitlines()}
    assert {line[0] for line in lines} == {"a", "b"}
    assert len(lines) > 50
    assert set(lines) <= known


def test_a_short_corpus_gives_what_it_has(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    windows = draw_windows(corpus(tmp_path, 10), tokenizer, length=16, positions=10**6, seed=1)
    assert 0 < len(windows) < 40
    with pytest.raises(CorpusError):
        draw_windows(corpus(tmp_path, 0), tokenizer, length=16, positions=10, seed=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_few_positions_are_drawn_of_a_few_long_texts(
    seed: int, tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    path = tmp_path / "books.txt"
    path.write_text("".join(f"{' '.join(WORDS * 200)} {number}\n" for number in range(20)))
    windows = draw_windows(Corpus([path]), tokenizer, length=16, positions=64, seed=seed)
    assert len(windows) == 4


def test_a_text_keeps_its_lines_in_order(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    texts = [f"def f{n}():\n    x = {n}\n\n    return x" for n in range(40)]
    path = tmp_path / "code.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    windows = draw_windows(Corpus([path]), tokenizer, length=400, positions=400, seed=1)
    text = b"".join(tokenizer.vocabulary.tokens[i] or b"" for i in windows[0]).decode()
    whole = [f"def f{part}" for part in text.split("def f")[1:-1]]
    assert len(whole) > 3
    assert {text.strip() for text in whole} <= set(texts)


WINDOW = cast("list[TargetId]", [5, 90, 17, 17, 3, 44, 61, 8, 2, 33, 71, 12])


@pytest.mark.parametrize("sliding_window", [None, 48])
def test_greedy_ids_are_those_of_a_generation_from_each_position(
    sliding_window: int | None,
) -> None:
    model = random_model(sliding_window=sliding_window)
    labels = Labeller(model, Labelling(future=4)).label(WINDOW)
    assert labels.ids[:, 0].tolist() == WINDOW
    assert labels.ids.shape == (len(WINDOW), 1 + 4)
    for position, found in enumerate(labels.ids[:, 1:].tolist()):
        ids = list(WINDOW[: position + 1])
        for expected in found:
            assert int(mx.argmax(model(mx.array([ids]))[0, -1])) == expected
            ids.append(expected)


def test_hidden_states_are_what_the_output_head_reads() -> None:
    model = random_model()
    labels = Labeller(model, Labelling()).label(WINDOW)
    expected = np.array(model.model(mx.array([WINDOW]))[0])
    assert np.allclose(labels.values, expected, rtol=2e-3, atol=2e-3)


def test_states_too_large_for_float16_become_its_largest_numbers() -> None:
    """Those of a Gemma are after BOS, and on a GPU they are in bfloat16."""
    model = random_model.__wrapped__()
    model.set_dtype(mx.bfloat16)
    model.model.embed_tokens.weight *= 1e6
    labels = Labeller(model, Labelling(kind="text", future=3, taps=(0, 1))).label(WINDOW)
    assert np.abs(labels.values).max() == np.finfo(np.float16).max


def test_ids_of_the_text_follow_where_all_of_them_are_known() -> None:
    labels = Labeller(random_model(), Labelling(kind="text", future=3)).label(WINDOW)
    assert labels.values.shape[0] == labels.ids.shape[0] == len(WINDOW) - 3
    assert labels.ids.tolist() == [WINDOW[i : i + 4] for i in range(len(WINDOW) - 3)]


def test_sampled_ids_follow_their_seed_and_become_greedy_as_it_gets_cold() -> None:
    def ids(**labelling: Any) -> list[list[int]]:
        return cast("list[list[int]]", random_labels(2, **labelling).ids.tolist())

    assert ids(kind="sampled") == ids(kind="sampled") != ids(kind="sampled", seed=1)
    assert ids(kind="sampled", temperature=1e-4) == ids(kind="greedy") != ids(kind="sampled")
    same_window = Labeller(random_model(), Labelling(kind="sampled"))
    first, second = (same_window.label(WINDOW, number).ids.tolist() for number in (0, 1))
    assert first != second


@pytest.mark.parametrize("architecture", ["gpt2", "mamba2"])  # learned positions; no attention
def test_a_model_that_takes_no_trees_learns_from_the_text(architecture: str) -> None:
    model = zoo_model(architecture)
    with pytest.raises(IncompatibleError, match="--labels text"):
        Labeller(model, Labelling())
    text = Labeller(model, Labelling(kind="text", future=2)).label(WINDOW)
    assert text.ids.tolist() == [WINDOW[i : i + 3] for i in range(len(WINDOW) - 2)]


def test_a_window_that_a_layer_would_forget_is_refused() -> None:
    labeller = Labeller(random_model(sliding_window=40), Labelling(future=4))
    with pytest.raises(UsageError, match="--window 10"):
        labeller.label(WINDOW)
