"""A build is a function of its inputs, and one that does not finish changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from polish import SENTENCES
from small_tokenizers import trained_tokenizer

from tokalign.build.alignment import build_alignment
from tokalign.build.corpus import Corpus, Progress
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.pipeline import Builder, build_tables
from tokalign.errors import UsageError
from tokalign.tables.alignment import Intersection
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, read_bundle

SMALL = 3_000


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Any, Any]:
    """The draft's and the target's."""
    return trained_tokenizer(300), trained_tokenizer(360)


def write_corpus(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    path.write_text("".join(sentence.replace("\n", " ") + "\n" for sentence in SENTENCES) * 5)
    return path


def builders_in(folder: Path, draft: Any, target: Any) -> dict[Path, Builder]:
    def dictionary(max_bytes: int) -> Builder:
        options = BackoffOptions(max_bytes=max_bytes)
        return partial(build_dictionary, target, options=options, language="pl")

    return {
        folder / "pl.dictionary.tok": dictionary(2 * SMALL),
        folder / "best.dictionary.tok": dictionary(SMALL),
        folder / "draft.alignment.tok": lambda _, stage: build_alignment(
            draft, target, stage=stage
        ),
    }


@pytest.mark.slow
def test_equal_inputs_give_equal_files_wherever_they_lie(
    tmp_path: Path, tokenizers: tuple[Any, Any]
) -> None:
    files = []
    for place in ("here", "there"):
        corpus = Corpus([write_corpus(tmp_path / f"{place}-corpus")])
        builders = builders_in(tmp_path / place, *tokenizers)
        build_tables(corpus, builders)
        files.append([path.read_bytes() for path in builders])
    assert files[0] == files[1]


def test_a_stage_says_what_it_counts(tmp_path: Path, tokenizers: tuple[Any, Any]) -> None:
    """An alignment is made of a vocabulary, which may be larger than a small corpus in bytes."""
    units = dict[str, str]()

    @contextmanager
    def stage(_total: int, label: str, unit: str = "") -> Iterator[Progress]:
        units[label] = unit
        yield lambda _: None

    corpus = Corpus([write_corpus(tmp_path)])
    _, *builders = builders_in(tmp_path / "out", *tokenizers).items()
    build_tables(corpus, dict(builders), stage)
    in_bytes = [label for label, unit in units.items() if unit == "bytes"]
    assert in_bytes == ["Encoding the corpus", "Counting n-grams"]
    assert units["Aligning the vocabularies"] == ""


@pytest.mark.slow
def test_what_is_written_is_what_was_asked_for(tmp_path: Path, tokenizers: tuple[Any, Any]) -> None:
    corpus = Corpus([write_corpus(tmp_path)])
    report = build_tables(corpus, builders_in(tmp_path / "out", *tokenizers))
    draft, target = tokenizers
    dictionary, best, pair = (read_bundle(written.path) for written in report.tables)
    assert dictionary.fingerprints == best.fingerprints == {"target": target.fingerprint}
    assert pair.fingerprints == {"target": target.fingerprint, "draft": draft.fingerprint}
    assert dictionary.corpus == best.corpus == corpus.stamp
    assert pair.corpus == {}  # it is of two tokenizers alone
    assert dictionary.parameters["max_bytes"] == 2 * SMALL
    for bundle, written in zip((dictionary, best), report.tables, strict=False):
        entries = len(BackoffTable.from_bundle(bundle))
        assert entries == bundle.statistics["entries"] == written.entries > 50
    assert SMALL * 0.7 < report.tables[1].bytes <= SMALL
    assert Intersection.from_bundle(pair).pairs == report.tables[2].entries > 250
    assert report.text_bytes == corpus.size
    assert report.peak_memory > 1 << 20


def test_nothing_is_written_unless_everything_is_built(
    tmp_path: Path, tokenizers: tuple[Any, Any]
) -> None:
    def interrupt(_corpus: Corpus, **_: Any) -> Bundle:
        raise KeyboardInterrupt

    builders = builders_in(tmp_path / "out", *tokenizers)
    builders[tmp_path / "out" / "last.tok"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        build_tables(Corpus([write_corpus(tmp_path)]), builders)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    corpus = Corpus([write_corpus(tmp_path / "corpus")])
    (tmp_path / "file").touch()
    (tmp_path / "pl.dictionary.tok").mkdir()
    for path in (tmp_path / "file" / "new" / "pl.dictionary.tok", tmp_path / "pl.dictionary.tok"):
        builders = {path: lambda corpus, stage: pytest.fail("it was built")}
        with pytest.raises(UsageError, match=r"cannot be written .*--output"):
            build_tables(corpus, builders)
        with pytest.raises(UsageError, match="; elsewhere"):  # as who has no --output says
            build_tables(corpus, builders, remedy="elsewhere")
    assert corpus.stamp == {}


def test_two_processes_cannot_build_the_same_table(tmp_path: Path) -> None:
    corpus, path = Corpus([write_corpus(tmp_path / "corpus")]), tmp_path / "out" / "pl.pack.tok"

    def build(corpus: Corpus, **_: Any) -> Bundle:
        with pytest.raises(UsageError, match=r"process \d+ on .* is building .*pl.pack.tok; wait"):
            build_tables(corpus, {path: lambda *_, **__: pytest.fail("it was built twice")})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_tables(corpus, {path: build})
    assert not (tmp_path / "out").exists()


def test_a_table_of_other_content_is_kept_when_it_is_replaced(
    tmp_path: Path, tokenizers: tuple[Any, Any]
) -> None:
    corpus = Corpus([write_corpus(tmp_path)])
    builders = builders_in(tmp_path / "out", *tokenizers)
    first = build_tables(corpus, builders)
    assert [table.previous for table in first.tables] == [None] * 3
    again = build_tables(corpus, builders)
    assert [table.previous for table in again.tables] == [None] * 3  # equal: nothing to keep
    old = first.tables[0].path.read_bytes()
    (tmp_path / "text.txt").write_text("Zupełnie inny tekst, zupełnie inny tekst.\n")
    other = build_tables(Corpus([tmp_path / "text.txt"]), builders)
    assert other.tables[0].previous is not None
    assert other.tables[0].previous.read_bytes() == old


def test_a_dictionary_too_small_for_its_header_is_refused(
    tmp_path: Path, tokenizers: tuple[Any, Any]
) -> None:
    corpus = Corpus([write_corpus(tmp_path)])
    with pytest.raises(UsageError, match="give at least"):
        build_dictionary(tokenizers[1], corpus, BackoffOptions(max_bytes=100), language="pl")
