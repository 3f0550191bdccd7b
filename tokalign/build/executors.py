"""Running the steps of a `DictionaryJob` with datatrove's executors: its local one, and Ray's.

datatrove is imported when a job is run. Its Slurm executor needs a script of its own, because it
submits jobs and returns: docs/scale.md.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tokalign.build.engines import REPORT, DictionaryJob, StepName, Task
from tokalign.build.pipeline import BuildReport, WrittenTable
from tokalign.errors import TokalignError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Which executor of datatrove runs a job, and how much of it.

    engine: `datatrove`, its local executor, or `ray`.
    workers: how many tasks run at once. memory: bytes that one task may hold.
    first, tasks: the tasks of this machine; by default all. The other machines do the others, and
        the machine that does task 0 makes the table.
    """

    engine: Literal["datatrove", "ray"]
    workers: int
    memory: int
    first: int = 0
    tasks: int | None = None


def run_job(job: DictionaryJob, executor: Executor) -> BuildReport:
    """Run the steps of a job one after the other; tasks that are marked as done are skipped.

    Between two steps datatrove waits for the tasks of other machines, and looks every two minutes.
    Where task 0 is done the folder is deleted at the end; elsewhere the report has no table.
    Raises: what a task raised (datatrove); TokalignError that names the logs (Ray); UsageError
        without datatrove.
    """
    started = time.monotonic()
    previous: Any = None
    tables = []
    report = {"text_bytes": 0, "lines_skipped": 0, "peak_memory": 0}
    for step, task, tasks in job.tasks():
        if step == "table" and executor.first > 0:
            break
        previous = _make_executor(job, executor, step, task, tasks, previous)
        previous.run()
        _require_done(job, executor, step, previous)
    else:
        report = json.loads((job.folder / REPORT).read_text("utf-8"))
        tables.append(_written(report))
        shutil.rmtree(job.folder, ignore_errors=True)
    return BuildReport(
        tables=tuple(tables),
        text_bytes=report["text_bytes"],
        lines_skipped=report["lines_skipped"],
        seconds=time.monotonic() - started,
        peak_memory=report["peak_memory"] * executor.workers,
    )


def _written(report: dict[str, Any]) -> WrittenTable:
    return WrittenTable(
        path=Path(report["path"]),
        kind="dictionary",
        bytes=report["bytes"],
        entries=report["entries"],
        previous=Path(report["previous"]) if report["previous"] else None,
    )


def _make_executor(
    job: DictionaryJob, executor: Executor, step: StepName, task: Task, tasks: int, previous: Any
) -> Any:
    try:
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor
    except ImportError as error:
        raise UsageError(
            f"--engine {executor.engine} runs on datatrove; install it with: "
            "pip install 'tokalign[cluster]'"
        ) from error
    common = {
        "pipeline": [task],
        "tasks": tasks,
        "workers": min(executor.workers, tasks),
        "logging_dir": job.logs(step),
        "depends": previous,
    }
    if executor.engine == "ray":
        if find_spec("ray") is None:
            raise UsageError("--engine ray runs on Ray; install it with: pip install ray")
        return RayPipelineExecutor(**common, mem_per_cpu_gb=executor.memory / 2**30)
    here = 1 if step == "table" else executor.tasks or tasks - executor.first
    return LocalPipelineExecutor(**common, local_tasks=here, local_rank_offset=executor.first)


def _require_done(job: DictionaryJob, executor: Executor, step: StepName, run: Any) -> None:
    """Ray's executor returns whatever became of its tasks."""
    if executor.engine != "ray":
        return
    missing = run.get_incomplete_ranks(skip_completed=True)
    if missing:
        raise TokalignError(
            f"{len(missing)} of the tasks of {step} failed, the first one with number "
            f"{missing[0]}; its log in {job.logs(step)}/logs says why; the same command goes on "
            "after that is mended"
        )
