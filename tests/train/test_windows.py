"""Windows: all of one length, from everywhere in a corpus, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import write_tokenizer

from tokalign.build.corpus import Corpus
from tokalign.errors import CorpusError
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.train.labelled_corpus import draw_windows

WORDS = ["rzeka", "most", "droga", "las", "dom", "pies", "kot", "chleb"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer[Any]:
    folder = tmp_path_factory.mktemp("t")
    write_tokenizer(folder, vocabulary_size=340)
    return read_tokenizer(folder)


def corpus(folder: Path, lines: int = 400) -> Corpus:
    for name in ("a.txt", "b.txt"):
        text = [f"{name[0]} {WORDS[n % 8]} {WORDS[n % 7]} {n}" for n in range(lines)]
        (folder / name).write_text("\n".join(text) + "\n", "utf-8")
    return Corpus([folder / "a.txt", folder / "b.txt"])


def test_windows_have_one_length_and_about_the_positions_asked_for(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    windows = draw_windows(corpus(tmp_path), tokenizer, length=32, positions=1000, seed=1)
    assert len(windows) == 32
    assert {len(window) for window in windows} == {32}


def test_paragraphs_come_whole_from_all_files(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    windows = draw_windows(corpus(tmp_path), tokenizer, length=32, positions=1000, seed=1)
    text = b"".join(tokenizer.vocabulary.tokens[i] or b"" for w in windows for i in w).decode()
    lines = [line.strip() for line in text.splitlines()[1:-1]]
    known = {line for path in tmp_path.iterdir() for line in path.read_text("utf-8").splitlines()}
    assert {line[0] for line in lines} == {"a", "b"}
    assert len(lines) > 50
    assert set(lines) <= known


def test_a_seed_gives_the_same_windows_and_another_one_others(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    drawn = [
        draw_windows(corpus(tmp_path), tokenizer, length=32, positions=500, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_short_corpus_gives_what_it_has(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    windows = draw_windows(corpus(tmp_path, 10), tokenizer, length=16, positions=10**6, seed=1)
    assert 0 < len(windows) < 40


def test_an_empty_corpus_is_refused(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        draw_windows(corpus(tmp_path, 0), tokenizer, length=16, positions=10, seed=1)
