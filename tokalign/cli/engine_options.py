"""`tokalign build --engine`: who counts a dictionary, and how much of it on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar

import click

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
