"""`tokalign build --engine`: who counts a dictionary, and how much of it on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.corpus import Corpus
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, DictspecOptions
    from tokalign.build.pipeline import BuildReport
    from tokalign.tokenizer.vocabulary import TargetId

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What was asked for; None for what was not given."""

    engine: Literal["local", "datatrove", "ray"]
    tasks: int | None
    workers: int | None
    local_tasks: int | None
    local_rank_offset: int


def engine_options(command: Command) -> Command:
    """Add the options to a command, which takes them as the one argument `engine`."""

    @wraps(command)
    def with_engine(**arguments: Any) -> Any:
        names = EngineOptions.__dataclass_fields__
        chosen = EngineOptions(**{name: arguments.pop(name) for name in names})
        return command(engine=chosen, **arguments)

    for option in reversed(_OPTIONS):
        option(with_engine)
    return with_engine  # type: ignore[return-value]


_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["local", "datatrove", "ray"]),
        default="local",
        help="backoff: what counts: the cores of this machine, datatrove on one or several "
        "machines, or datatrove on a Ray cluster (docs/scale.md). The table is the same.",
    ),
    click.option(
        "--tasks",
        type=click.IntRange(min=1),
        help="datatrove, ray: how many tasks share the corpus files. Default: the workers.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="datatrove, ray: how many tasks run at once. Default: one per core.",
    ),
    click.option(
        "--local-tasks",
        type=click.IntRange(min=1),
        help="datatrove: how many of the tasks are done on this machine. Default: all the rest.",
    ),
    click.option(
        "--local-rank-offset",
        type=click.IntRange(min=0),
        default=0,
        help="datatrove: the first task of this machine. The machine with task 0 makes the table.",
    ),
)


def build_on_engine(
    engine: EngineOptions,
    target: str,
    corpus: Corpus,
    options: BackoffOptions | DictspecOptions,
    *,
    language: str,
    output: Path | None,
    tell: Callable[[str], None],
) -> BuildReport:
    """Build a dictionary on datatrove or Ray; no table in the report if another machine makes it.

    Raises: UsageError for a kind of dictionary that is not counted so, and for tasks that do not
        fit together.
    """
    from tokalign.build.counting.memory_budget import plan_processes
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
    from tokalign.build.engines import plan_dictionary
    from tokalign.build.executors import Executor, run_job
    from tokalign.tables.finding import table_folder
    from tokalign.tokenizer.registry import Resolved, resolve_tokenizer

    if not isinstance(options, BackoffOptions):
        raise UsageError(f"--engine {engine.engine} is for --dictionary-kind backoff; use local")
    assert engine.engine != "local"
    ours: Resolved[TargetId] = resolve_tokenizer(target)
    tell(ours.description)
    folder = (output or table_folder()) / ours.slug
    if options.workspace is None:
        options = replace(options, workspace=folder / f"{language}.job")
    wanted = engine.workers or os.cpu_count() or 1
    workers, max_words = plan_processes(
        options.memory, jobs=wanted, vocabulary_size=len(ours.tokenizer.vocabulary)
    )
    tasks = engine.tasks or wanted
    here = engine.local_tasks or tasks - engine.local_rank_offset
    if not 0 < here <= tasks - engine.local_rank_offset:
        raise UsageError(
            f"the tasks of this machine ({engine.local_rank_offset} to "
            f"{engine.local_rank_offset + here - 1}) are not among --tasks {tasks}; "
            "give a lower --local-rank-offset or fewer --local-tasks"
        )
    if engine.engine == "ray" and here < tasks:
        raise UsageError("Ray spreads the tasks itself; leave out --local-tasks and its offset")
    if len(corpus.weights) < tasks:
        tell(f"{tasks} tasks share {len(corpus.weights)} corpus files; some of them encode nothing")
    job = plan_dictionary(
        ours.tokenizer,
        corpus,
        options,
        language=language,
        path=folder / f"{language}.dictionary.tok",
        shares=tasks,
        max_words=max_words,
    )
    executor = Executor(
        engine=engine.engine,
        workers=workers,
        memory=options.memory // workers,
        first=engine.local_rank_offset,
        tasks=here,
    )
    built = run_job(job, executor)
    if not built.tables:
        end = engine.local_rank_offset + here - 1
        tell(f"tasks {engine.local_rank_offset} to {end} are done; the machine with task 0 goes on")
    return built
