"""From a corpus and two tokenizers to table files: the order of the steps, the clock, the paths.

Everything is computed before anything is written, and each file appears whole or not at all, so an
interrupted build changes nothing. What is built: `dictionary/dictionary_bundle.py` and
`alignment.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tokalign.build.alignment import build_alignment
from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.workers import peak_memory
from tokalign.storage import require_writable, write_file
from tokalign.tables.bundle import OUTPUT_REMEDY, Bundle, encode_bundle
from tokalign.tables.header import MOST_HEADER_BYTES
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Builder = Callable[[Corpus, Stage], Bundle]
"""Builds one bundle from a corpus: `build_dictionary` or `build_pair`, with its arguments bound."""

COVERAGE_BYTES = 1 << 23
"""The coverage of a pair is measured on about so many bytes (on disk) of the corpus."""

_MOST_CHARACTERS = 1 << 26
"""The most characters that it is measured on: an archive may be a thousandth of its text."""

_ENTRIES = {
    "dictionary": "entries",
    "alignment": "intersection_pairs",
    "logits": "rows",
    "pack": "ngrams",
}
"""For each kind of bundle, the statistic that counts its entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """One table file: its size in bytes, and how many entries (contexts, pairs) it holds.

    previous: where the table that it replaced is kept, if that had other content.
    """

    path: Path
    kind: str
    bytes: int
    entries: int
    previous: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did.

    text_bytes: of the corpus, decompressed. peak_memory: in bytes, see `workers.peak_memory`.
    """

    tables: tuple[WrittenTable, ...]
    text_bytes: int
    lines_skipped: int
    seconds: float
    peak_memory: int


def build_tables(
    corpus: Corpus, builders: Mapping[Path, Builder], stage: Stage = silent
) -> BuildReport:
    """Build every table, then write every table. builders: file -> what builds its bundle.

    Raises: before anything is read, CorpusError for more files than a header can name and
        UsageError for a file that cannot be written; then what the builders raise.
    """
    started = time.monotonic()
    corpus.require_room(MOST_HEADER_BYTES)
    for path in builders:
        require_writable(path, parents=True, remedy=OUTPUT_REMEDY)
    bundles = {path: build(corpus, stage) for path, build in builders.items()}
    return BuildReport(
        tables=tuple(write_table(path, bundle) for path, bundle in bundles.items()),
        text_bytes=corpus.text_bytes,
        lines_skipped=corpus.skipped,
        seconds=time.monotonic() - started,
        peak_memory=peak_memory(),
    )


def build_pair(
    draft: Tokenizer[DraftId], target: Tokenizer[TargetId], corpus: Corpus, *, stage: Stage = silent
) -> Bundle:
    """The alignment of two tokenizers, with frequencies from every n-th line of the corpus."""
    every = max(1, -(-corpus.size // COVERAGE_BYTES))
    # One stage for two steps: first the target's tokens, each counted as so many bytes, then the
    # corpus.
    token_bytes = corpus.size // len(target.vocabulary) + 1
    total = token_bytes * len(target.vocabulary) + corpus.size
    with stage(total, "Aligning the vocabularies") as advance:
        bundle = build_alignment(
            draft,
            target,
            _sample(corpus.lines(advance), every),
            progress=lambda tokens: advance(token_bytes * tokens),
        )
    return replace(
        bundle, corpus=corpus.stamp, parameters={**bundle.parameters, "coverage_every": every}
    )


def _sample(lines: Iterable[str], every: int) -> Iterator[str]:
    """Every n-th line, up to `_MOST_CHARACTERS`. All lines are read: the stamp is of all."""
    left = _MOST_CHARACTERS
    for number, line in enumerate(lines):
        if number % every == 0 and left > 0:
            left -= len(line)
            yield line


def write_table(path: Path, bundle: Bundle) -> WrittenTable:
    """Write a table. A table of other content at that path is kept as `*.previous`."""
    data, previous = encode_bundle(bundle), None
    if path.is_file() and (old := path.read_bytes()) != data:
        # Building it again from a large corpus would take long.
        previous = path.with_name(path.name + ".previous")
        write_file(previous, old)
    write_file(path, data, parents=True, remedy=OUTPUT_REMEDY)
    return WrittenTable(
        path=path,
        kind=bundle.kind,
        bytes=len(data),
        entries=int(bundle.statistics[_ENTRIES[bundle.kind]]),
        previous=previous,
    )
