"""Runs that end where a test says so, in the place of a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tokalign.build.corpus import Stage


class Killed(Exception):  # noqa: N818
    """In the place of a signal: whatever is on disk by then is all that is left."""


def killed_when(kill: Callable[[str, int], bool]) -> Stage:
    """Stages that are killed when `kill` says so of their label and the units done."""

    @contextmanager
    def stage(_total: int, label: str, _unit: str = "") -> Iterator[Callable[[int], None]]:
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if kill(label, done):
                raise Killed

        yield advance

    return stage


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
