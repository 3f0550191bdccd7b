"""A dictionary or a pack counted by datatrove: on one machine, on several, or by Slurm.

    encode    n tasks    a share of the corpus files -> one run of sorted windows
    table     one task   all runs -> the table

They are the two steps of `token_ngrams.count_corpus`. datatrove starts the tasks, marks those that
are done, skips them when a run is started again, and writes their logs. Its Slurm executor runs the
same tasks: docs/scale.md has the script.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tokalign.build.corpus import Corpus, Stage
from tokalign.build.counting.ngram_tree import grow_tree
from tokalign.build.counting.runs import REMEDY, is_whole, remove_workspace, require_workspace
from tokalign.build.counting.token_ngrams import Counted, Counting, count, encode, make_encoder
from tokalign.build.counting.word_encoder import MAX_WORDS
from tokalign.build.counting.workers import peak_memory, workers
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, backoff_bundle
from tokalign.build.pack import counting_words, pack_bundle
from tokalign.build.pipeline import BuildReport, build_tables, require_outputs
from tokalign.child_processes import safe_path, starting
from tokalign.errors import CorpusError, OutputError, UsageError
from tokalign.installation import needing
from tokalign.locks import locked
from tokalign.storage import write_file
from tokalign.tables.bundle import Bundle
from tokalign.tables.header import MOST_HEADER_BYTES
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

StepName = Literal["encode", "table"]

_JOB, _LOGS = "job.json", "logs"
_POLL = 120  # seconds between two looks at the tasks of other machines
_REMEDY = "choose folders that you may write to with --output or --workspace"
_TAKEN = "give each machine ranks of its own with --local-rank-offset, or wait until it has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A dictionary of a target, or a pack for None, to be counted in shares. It can be pickled.

    options.workspace: a folder that all machines see, by default next to the table. shares: how
    many tasks encode; the table does not depend on it. jobs: how many processes count for the
    table.
    max_words: how many words a task remembers, see `WordEncoder`.
    """

    target: Tokenizer[TargetId] | None
    corpus: Corpus
    options: BackoffOptions
    language: str
    path: Path
    shares: int
    jobs: int = 1
    max_words: int = MAX_WORDS

    def __post_init__(self) -> None:
        """Take the folder for this job, as completion marks of another one would be wrong.

        Raises: UsageError if it holds other files, or if it or the table cannot be written;
        CorpusError for more files than a table's header can name.
        """
        self.corpus.require_room(MOST_HEADER_BYTES)
        require_outputs([self.path])
        facts = {
            **self.counting.facts,
            "language": self.language,
            "max_bytes": self.options.max_bytes,
            "p_min": self.options.p_min,
            "tasks": self.shares,
        }
        file = self.folder / _JOB
        if not file.exists():
            if self.folder.is_dir():
                require_workspace(self.folder, _JOB)
            write_file(file, json.dumps(facts, ensure_ascii=False), parents=True, remedy=_REMEDY)
        claimed = json.loads(file.read_text("utf-8"))
        other = [name for name in facts if claimed.get(name) != facts[name]]
        if other:
            raise UsageError(
                f"{self.folder} holds a job that has other {', '.join(other)}; give the command "
                "that began it, or another --workspace, or delete the folder"
            )

    @property
    def counting(self) -> Counting:
        if self.target is None:
            return counting_words(self.corpus, self.options.min_count)
        return Counting(self.corpus, self.target, min_count=self.options.min_count)

    @property
    def folder(self) -> Path:
        return (self.options.workspace or self.path.with_suffix(".counting")).absolute()

    def tasks(self) -> list[tuple[StepName, Task, int]]:
        """Each step, what datatrove calls for each of its tasks, and how many tasks it has."""
        return [("encode", Task(self, "encode"), self.shares), ("table", Task(self, "table"), 1)]

    def logs(self, step: StepName) -> str:
        """datatrove's `logging_dir` of a step: its completion marks, logs and statistics."""
        return str(self.folder / _LOGS / step)

    def record(self, rank: int) -> Path:
        return self.folder / f"encode-{rank:05d}.json"


class Task:
    """What datatrove calls: does one share of one step."""

    def __init__(self, job: ClusterJob, step: StepName) -> None:
        self.job, self.step = job, step

    def __repr__(self) -> str:
        return f"tokalign {self.step}: {self.job.path.name}"

    def __call__(self, _: object, rank: int, world_size: int) -> None:
        """Raises: UsageError while another process does this share; what the step raises."""
        folder, name = self.job.folder, f"{self.step}-{rank:05d}"
        with locked(folder / f"{name}.lock", f"doing {name} in {folder}", _TAKEN):
            if self.step == "encode":
                _encode(self.job, rank, world_size)
                return
            _make_table(self.job)
            for path in folder.iterdir():
                if path.is_file() and path.name != _JOB:
                    path.unlink()


def log_problem(problem: CorpusError) -> None:
    """A `Report` that can be pickled: a line in datatrove's log of the task."""
    from loguru import logger

    logger.warning("skipped {}", problem)


def _encode(job: ClusterJob, rank: int, world_size: int) -> None:
    """Turn every `world_size`th corpus file into one run, or into shards of words."""
    counting = job.counting
    folder = job.folder / f"encode-{rank:05d}"
    folder.mkdir(exist_ok=True)
    readings = counting.corpus.readings(start=rank, step=world_size)
    with workers(1, partial(make_encoder, counting.tokenizer, job.max_words)) as apply:
        shards, stamps = encode(counting, readings, folder, apply, most=1)
    for shard in dict.fromkeys(shards):
        shard.replace(job.folder / shard.name)
    record = {
        "runs": [shard.name for shard in shards],
        "stamps": stamps,
        "peak_memory": peak_memory(),
    }
    write_file(job.record(rank), json.dumps(record), remedy=REMEDY)
    shutil.rmtree(folder)


def _make_table(job: ClusterJob) -> BuildReport:
    records = [_read_record(job, rank) for rank in range(job.shares)]
    shards = [job.folder / name for record in records for name in record["runs"]]
    job.corpus.finish(stamp for record in records for stamp in record["stamps"])

    def build(corpus: Corpus, stage: Stage) -> Bundle:
        with workers(job.jobs, object) as apply:
            orders, words = count(job.counting, shards, job.folder, apply, lambda _: None)
        counted = Counted(grow_tree(orders), words, corpus.stamp)
        make = pack_bundle if job.target is None else partial(backoff_bundle, job.target)
        return make(counted, job.options, language=job.language, stage=stage)

    built = build_tables(job.corpus, {job.path: build})
    most = max(record["peak_memory"] for record in records)
    return replace(built, peak_memory=max(most, built.peak_memory))


def _read_record(job: ClusterJob, rank: int) -> Any:
    """Raises: UsageError if the task has left nothing; OutputError for a damaged run."""
    try:
        record = json.loads(job.record(rank).read_text("utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"{error.filename} is not there; do all tasks of the step encode first, in this folder"
        ) from error
    for path in (job.folder / name for name in record["runs"]):
        if not is_whole(path):
            mark = Path(job.logs("encode")) / "completions" / f"{rank:05d}"
            raise OutputError(
                f"{path} is only half-written, as a power cut leaves a file; delete {mark} and "
                "give the command again, which makes the file again"
            )
    return record


def run_job(
    job: ClusterJob, *, processes: int, first: int = 0, tasks: int | None = None
) -> BuildReport:
    """Encode, and on the machine that does task 0 make the table; finished tasks are skipped.

    processes: how many tasks run at once. first, tasks: those of this machine; by default all.
    The machine that does task 0 waits for the others; elsewhere the report has no table.
    Raises: what a task raised; UsageError without datatrove.
    """
    runs_on = "--engine datatrove runs on datatrove; install it"
    with needing(runs_on, extra="cluster", kind=UsageError):
        from datatrove.executor import LocalPipelineExecutor
        from multiprocess import forkserver, resource_tracker
    started = time.monotonic()
    encoding = LocalPipelineExecutor(
        pipeline=[Task(job, "encode")],
        tasks=job.shares,
        workers=min(processes, job.shares),
        logging_dir=job.logs("encode"),
        local_tasks=tasks or job.shares - first,
        local_rank_offset=first,
    )
    with safe_path():
        resource_tracker.ensure_running()  # first, as starting it lets Ctrl-C through
        with starting():  # a worker that Ctrl-C ends leaves locks that datatrove waits for
            forkserver.ensure_running()
        encoding.run()
    if first:
        return BuildReport(seconds=time.monotonic() - started, peak_memory=peak_memory())
    while encoding.get_incomplete_ranks(skip_completed=True):
        time.sleep(_POLL)
    built = _make_table(job)
    shutil.rmtree(job.logs("encode"))  # first, as its marks promise the files
    with suppress(OSError):
        remove_workspace(job.folder)
    return replace(
        built, seconds=time.monotonic() - started, peak_memory=built.peak_memory * processes
    )
