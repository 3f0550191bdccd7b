"""What every recipe goes through: check the output, lock it, build, write.

A recipe maps typed inputs to one bundle: `build_dictionary` (of a corpus, or `compile_pack` of a
pack), `build_alignment`, `build_pack` and `build_logit_table`. Everything is computed before
anything is written, so an interrupted build changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.workers import peak_memory
from tokalign.locks import making
from tokalign.storage import require_writable, write_file
from tokalign.tables.bundle import OUTPUT_REMEDY, Bundle, encode_bundle
from tokalign.tables.header import KINDS, MOST_HEADER_BYTES

Builder = Callable[..., Bundle]
"""A recipe with all inputs bound but the corpus and the keyword `stage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """One table file. previous: where the table that it replaced is kept, if it differs."""

    path: Path
    kind: str
    bytes: int
    entries: int
    previous: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did. text_bytes: decompressed. peak_memory: see `workers.peak_memory`."""

    tables: tuple[WrittenTable, ...] = ()
    text_bytes: int = 0
    lines_skipped: int = 0
    seconds: float
    peak_memory: int


def build_tables(
    corpus: Corpus,
    builders: Mapping[Path, Builder],
    stage: Stage = silent,
    *,
    remedy: str = OUTPUT_REMEDY,
) -> BuildReport:
    """Build every table, then write every table. builders: by file. remedy: see `write_file`.

    Raises: before anything is read, CorpusError for more files than a header can name and
    UsageError for a file that cannot be written or is being built; then what the builders raise.
    """
    started = time.monotonic()
    corpus.require_room(MOST_HEADER_BYTES)
    require_outputs(builders, remedy)
    with ExitStack() as locks:
        for path in builders:
            locks.enter_context(making(path, "building"))
        bundles = {path: build(corpus, stage=stage) for path, build in builders.items()}
        tables = tuple(write_table(path, bundle, remedy) for path, bundle in bundles.items())
    return BuildReport(
        tables=tables,
        text_bytes=corpus.text_bytes,
        lines_skipped=corpus.skipped,
        seconds=time.monotonic() - started,
        peak_memory=peak_memory(),
    )


def require_outputs(paths: Iterable[Path], remedy: str = OUTPUT_REMEDY) -> None:
    """Raises: UsageError if tables cannot be written here."""
    for path in paths:
        require_writable(path, parents=True, remedy=remedy)


def write_table(path: Path, bundle: Bundle, remedy: str = OUTPUT_REMEDY) -> WrittenTable:
    """Write a table. A table of other content at that path is kept as `*.previous`."""
    data, previous = encode_bundle(bundle), None
    if path.is_file() and (old := path.read_bytes()) != data:
        # Building it again from a large corpus would take long.
        previous = path.with_name(path.name + ".previous")
        write_file(previous, old, remedy=remedy)
    write_file(path, data, parents=True, remedy=remedy)
    return WrittenTable(
        path=path,
        kind=bundle.kind,
        bytes=len(data),
        entries=int(bundle.statistics[KINDS[bundle.kind].entries]),
        previous=previous,
    )
