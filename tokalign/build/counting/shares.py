"""What is counted, in how many shares, and the records in which the shares find each other's files.

A record is a small file that a share leaves when it has done a step. The steps: `steps.py`.
"""

from __future__ import annotations

import math
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tokalign.atomic_file import write_file
from tokalign.build.corpus import Corpus
from tokalign.build.counting.run_files import Layout
from tokalign.build.counting.windows import IdSpace
from tokalign.build.counting.workspace import RECORD
from tokalign.build.text_files import FileStamp
from tokalign.errors import UsageError
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

WEIGHT_UNIT = 1000
"""Weights and counts are kept in thousandths."""

REMEDY = "make room, or choose a folder on another disk with --workspace"


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the work is cut; the result does not depend on it.

    shard_characters: a shard ends after the line that reaches so many; about 400,000 tokens.
    range_windows: about how many tokens have their n-grams counted at once.
    most_runs: 2 or more; if one share has more shards, their runs are merged, so many at a time.
    """

    shard_characters: int = 1 << 20
    range_windows: int = 1 << 18
    most_runs: int = 1 << 9


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` shares of the work of a step; they are numbered from 0 on."""

    number: int = 0
    of: int = 1

    def block(self, total: int) -> tuple[int, int]:
        """The first of so many things that belong to this share, and the first that does not."""
        return total * self.number // self.of, total * (self.number + 1) // self.of

    def __str__(self) -> str:
        return f"{self.number:05d}-of-{self.of:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """What is counted, and the folder in which the shares find each other's files.

    min_count, max_ngrams: see `count_token_ngrams`.
    """

    corpus: Corpus
    tokenizer: Tokenizer[TargetId]
    max_order: int
    min_count: float
    max_ngrams: int
    folder: Path
    chunks: Chunks = Chunks()

    @property
    def space(self) -> IdSpace:
        """How the ids of the tokenizer are written."""
        return IdSpace(len(self.tokenizer.vocabulary))

    @property
    def layout(self) -> Layout:
        """The shape of the windows."""
        return Layout(self.space, self.max_order)

    @property
    def least(self) -> int:
        """The least count of a kept n-gram, in thousandths."""
        return math.ceil(self.min_count * WEIGHT_UNIT)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the result, as far as it is known before the corpus is read."""
        return {
            **self.corpus.facts,
            "tokenizer": self.tokenizer.fingerprint,
            "max_order": self.max_order,
            "min_count": self.min_count,
            "max_ngrams": self.max_ngrams,
        }


def write_record(counting: Counting, step: str, share: Share, content: dict[str, Any]) -> None:
    """Leave a record, with the most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = {**content, "peak_memory": peak * (1 if sys.platform == "darwin" else 1024)}
    path = counting.folder / f"{step}-{share}{RECORD}"
    write_file(path, msgpack.packb(content), remedy=REMEDY)


def read_records(counting: Counting, step: str, shares: int) -> list[dict[str, Any]]:
    """The records of all shares of a step, in their order.

    Raises: UsageError if a share has left none.
    """
    paths = [counting.folder / f"{step}-{Share(n, shares)}{RECORD}" for n in range(shares)]
    try:
        return [msgpack.unpackb(path.read_bytes()) for path in paths]
    except FileNotFoundError as error:
        raise UsageError(
            f"{error.filename} is not there; do all tasks of the step {step} first, in this folder"
        ) from error


def read_stamps(counting: Counting, shares: int) -> list[FileStamp]:
    """What the shares read from the corpus files."""
    records = read_records(counting, "encode", shares)
    return [FileStamp(**stamp) for record in records for stamp in record["stamps"]]


def read_peak_memory(counting: Counting, step: str, shares: int) -> list[int]:
    """The most memory that the process of each share had held when the share was done, in bytes."""
    return [record["peak_memory"] for record in read_records(counting, step, shares)]
