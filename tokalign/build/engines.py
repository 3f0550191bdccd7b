"""A dictionary counted by datatrove: on the cores of one machine, on several machines, or by Ray.

The steps of a count (`counting/steps.py`) become datatrove pipelines, each with as many tasks as
there are shares, and a last one with a single task that makes the table. datatrove starts the
tasks, marks those that are done, skips them when a run is started again, and writes their logs.
Nothing here schedules or retries.

    executors that wait for one another, in this order, with the same folder for all:
    encode (n tasks)   cut (n)   count (n)   prune (n)   table (1)

A `Task` is a plain callable, as datatrove takes it, so its Slurm executor runs the same tasks; see
docs/scale.md for the script. datatrove is imported only where it is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tokalign.atomic_file import write_file
from tokalign.build.corpus import Corpus
from tokalign.build.counting.run_files import DamagedFileError
from tokalign.build.counting.shares import Counting, Share, read_peak_memory, read_stamps
from tokalign.build.counting.steps import collect, count, cut, encode, prune
from tokalign.build.counting.token_ngrams import MAX_NGRAMS, make_encoder
from tokalign.build.counting.word_encoder import MAX_WORDS
from tokalign.build.counting.workers import workers
from tokalign.build.counting.workspace import require_workspace, sole_process
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, backoff_bundle
from tokalign.build.pipeline import write_table
from tokalign.errors import CorpusError, OutputError, UsageError
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tables.header import MOST_HEADER_BYTES
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

StepName = Literal["encode", "cut", "count", "prune", "table"]
STEPS: tuple[StepName, ...] = ("encode", "cut", "count", "prune", "table")

_MADE_BY: dict[StepName, StepName] = {"cut": "encode", "prune": "count", "table": "prune"}
"""The step whose files a step checks before it uses them."""

REPORT = "table.json"
"""The file in the folder of a job that tells what became of it."""

_JOB, _LOGS = "job.json", "logs"
_REMEDY = "choose folders that you may write to with --output or --workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryJob:
    """A back-off dictionary to be counted in shares. It can be pickled.

    path: of the table file. shares: how many tasks do each step; the table does not depend on it.
    max_words: how many words a task remembers, see `WordEncoder`.
    """

    counting: Counting
    options: BackoffOptions
    language: str
    path: Path
    shares: int
    max_words: int

    @property
    def folder(self) -> Path:
        """Where the tasks find each other's files. All machines have to see it."""
        return self.counting.folder

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the table, as far as it is known before the corpus is read."""
        return {
            **self.counting.facts,
            "language": self.language,
            "max_bytes": self.options.max_bytes,
            "p_min": self.options.p_min,
            "tasks": self.shares,
        }

    def tasks(self) -> Iterator[tuple[StepName, Task, int]]:
        """Each step with what datatrove calls for each of its tasks, and how many tasks it has."""
        for name in STEPS:
            yield name, Task(self, name), 1 if name == "table" else self.shares

    def logs(self, step: StepName) -> str:
        """datatrove's `logging_dir` of a step: its completion marks, logs and statistics."""
        return str(self.folder / _LOGS / step)


def plan_dictionary(
    target: Tokenizer[TargetId],
    corpus: Corpus,
    options: BackoffOptions,
    *,
    language: str,
    path: Path,
    shares: int,
    max_words: int = MAX_WORDS,
) -> DictionaryJob:
    """Describe a dictionary to be counted in shares, and take its folder for it.

    options.workspace: the folder, which all machines have to see; it may hold a job that was
        killed, which then goes on. Its memory is not used here.
    path: of the table file. shares, max_words: see `DictionaryJob`.
    Raises: UsageError if the folder holds another job or other files, or cannot be written to;
        CorpusError for more files than a table's header can name.
    """
    corpus.require_room(MOST_HEADER_BYTES)
    folder = options.workspace or path.with_suffix(".counting")
    job = DictionaryJob(
        counting=Counting(
            corpus=corpus,
            tokenizer=target,
            max_order=MAX_CONTEXT + 1,
            min_count=options.min_count,
            max_ngrams=MAX_NGRAMS,
            folder=folder.absolute(),
        ),
        options=options,
        language=language,
        path=path.absolute(),
        shares=shares,
        max_words=max_words,
    )
    _claim(job)
    return job


def _claim(job: DictionaryJob) -> None:
    """Note in the folder which job it is for. Completion marks of another one would be wrong."""
    facts = json.loads(json.dumps(job.facts))
    file = job.folder / _JOB
    if not file.exists():
        if job.folder.is_dir():
            require_workspace(job.folder, _JOB)
        write_file(file, json.dumps(facts, ensure_ascii=False), parents=True, remedy=_REMEDY)
    there = json.loads(file.read_text("utf-8"))
    other = [name for name in facts if there.get(name) != facts[name]]
    if other:
        raise UsageError(
            f"{job.folder} holds a job that has other {', '.join(other)}; give the command that "
            "began it, or another --workspace, or delete the folder"
        )


class Task:
    """What datatrove calls: does one share of one step."""

    def __init__(self, job: DictionaryJob, step: StepName) -> None:
        self.job, self.step = job, step

    def __repr__(self) -> str:
        return f"tokalign {self.step}: {self.job.path.name}"

    def __call__(self, _: object, rank: int, world_size: int) -> None:
        """Do the share `rank` of `world_size`.

        Raises: UsageError while another process does this share; what the step raises.
        """
        with sole_process(self.job.folder, f"{self.step}-{rank:05d}"):
            try:
                _DO[self.step](self.job, Share(rank, world_size))
            except DamagedFileError as error:
                raise OutputError(f"{error}; {self._remedy(rank)}") from error

    def _remedy(self, rank: int) -> str:
        """How to have a damaged file made again: by the step before, which is marked as done."""
        marks = Path(self.job.logs(_MADE_BY[self.step])) / "completions"
        mark = marks if self.step == "table" else marks / f"{rank:05d}"
        return f"delete {mark} and give the command again, which makes the file again"


def log_problem(problem: CorpusError) -> None:
    """A `Report` that can be pickled: a line in datatrove's log of the task."""
    from loguru import logger

    logger.warning("skipped {}", problem)


def _encode(job: DictionaryJob, share: Share) -> None:
    make_state = partial(make_encoder, job.counting.tokenizer, job.max_words)
    with workers(1, make_state) as apply:
        encode(job.counting, share, apply, lambda _: None)


def _cut(job: DictionaryJob, share: Share) -> None:
    with workers(1, object) as apply:
        cut(job.counting, share, apply)


def _count(job: DictionaryJob, share: Share) -> None:
    with workers(1, object) as apply:
        count(job.counting, share, apply, lambda _: None)


def _prune(job: DictionaryJob, share: Share) -> None:
    prune(job.counting, share)


def _table(job: DictionaryJob, _: Share) -> None:
    """Make the table, and delete the counts."""
    counting = job.counting
    counting.corpus.finish(read_stamps(counting, job.shares))
    bundle = backoff_bundle(
        counting.tokenizer,
        counting.corpus,
        collect(counting, job.shares),
        job.options,
        language=job.language,
    )
    written = write_table(job.path, bundle)
    peaks = [max(read_peak_memory(counting, step, job.shares)) for step in ("encode", "count")]
    report = {
        "path": str(written.path),
        "bytes": written.bytes,
        "entries": written.entries,
        "previous": written.previous and str(written.previous),
        "text_bytes": counting.corpus.text_bytes,
        "lines_skipped": counting.corpus.skipped,
        "peak_memory": max(peaks),
    }
    write_file(job.folder / REPORT, json.dumps(report))
    for path in job.folder.iterdir():
        if path.is_file() and path.name not in (_JOB, REPORT):
            path.unlink()


_DO = {"encode": _encode, "cut": _cut, "count": _count, "prune": _prune, "table": _table}
