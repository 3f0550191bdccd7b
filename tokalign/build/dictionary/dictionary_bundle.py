"""The dictionary of a target tokenizer and a language as a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.ngram_tree import CONCENTRATION, DISCOUNT, OPTIMISM
from tokalign.build.counting.token_ngrams import (
    MAX_NGRAMS,
    MIN_COUNT,
    Counted,
    Counting,
    count_corpus,
)
from tokalign.build.counting.workers import MEMORY
from tokalign.build.dictionary.backoff import P_MIN, make_table
from tokalign.build.dictionary.pruning import ROW_COST
from tokalign.errors import UsageError
from tokalign.tables.backoff import KIND as BACKOFF
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, encode_bundle
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

DICTIONARY_BYTES = 5_000_000

_OF_TABLE = 512
"""More bytes than the table's parameters, statistics and names of sections add to a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffOptions:
    """How to build a back-off dictionary. max_bytes: of the whole file. p_min: the least
    probability of a whole chain that is proposed. min_count, memory, workspace: see `count_corpus`.
    """

    max_bytes: int = DICTIONARY_BYTES
    p_min: float = P_MIN
    min_count: int = MIN_COUNT
    memory: int = MEMORY
    workspace: Path | None = None


def build_dictionary(
    target: Tokenizer[TargetId],
    corpus: Corpus,
    options: BackoffOptions,
    *,
    language: str,
    stage: Stage = silent,
) -> Bundle:
    """The dictionary that `options` describe. Raises: UsageError if not even its header fits."""
    counted = count_corpus(
        Counting(corpus, target, min_count=options.min_count),
        memory=options.memory,
        workspace=options.workspace,
        stage=stage,
    )
    return backoff_bundle(target, counted, options, language=language, stage=stage)


def dictionary_of_lines(target: Tokenizer[TargetId], lines: Sequence[str]) -> BackoffTable:
    """The dictionary that `build_dictionary` makes of a few lines."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        built = build_dictionary(target, Corpus([path]), BackoffOptions(), language="und")
        return BackoffTable.from_bundle(built)


def backoff_bundle(
    target: Tokenizer[TargetId],
    counted: Counted,
    options: BackoffOptions,
    *,
    language: str,
    stage: Stage = silent,
) -> Bundle:
    """The back-off dictionary of n-grams. Raises: UsageError if not even its header fits."""
    levels = counted.levels
    frame = Bundle(
        kind="dictionary",
        fingerprints={"target": target.fingerprint},
        corpus=counted.stamp,
        parameters={
            "kind": BACKOFF,
            "language": language,
            "vocabulary_size": len(target.vocabulary),
            "min_count": options.min_count,
            "max_ngrams": MAX_NGRAMS,
            "discount": DISCOUNT,
            "concentration": CONCENTRATION,
            "optimism": OPTIMISM,
            "row_cost": ROW_COST,
            "max_bytes": options.max_bytes,
        },
        statistics={f"ngrams_of_{n}": len(level) for n, level in enumerate(levels, start=1)},
        sections={},
    )
    room = options.max_bytes - len(encode_bundle(frame)) - _OF_TABLE
    if room <= 0:
        raise UsageError(
            f"--dictionary-bytes {options.max_bytes} is less than the header alone takes; "
            f"give at least {options.max_bytes - room + 10_000}"
        )
    with stage(1, "Choosing contexts") as advance:
        table = make_table(
            levels, vocabulary_size=len(target.vocabulary), max_bytes=room, p_min=options.p_min
        )
        advance(1)
    stored = {"entries": len(table), "different_predictions": table.predictions}
    return replace(
        frame,
        parameters={**frame.parameters, **table.parameters.to_header()},
        statistics={**frame.statistics, **stored},
        sections=table.to_sections(),
    )
