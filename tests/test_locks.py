"""A lock has one holder at a time, who is named, and leaves every other file as it is."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from processes import small_disk

from tokalign.errors import UsageError
from tokalign.locks import locked


@pytest.mark.parametrize(
    ("disk", "holder"),
    [
        (nullcontext, rf"process {os.getpid()} on .*"),
        (partial(small_disk, 0), "another process"),  # who comes to make room is not stopped
    ],
    ids=["usual", "full disk"],
)
def test_the_holder_is_named_and_the_next_one_gets_the_lock(
    tmp_path: Path, disk: Callable[[], AbstractContextManager[None]], holder: str
) -> None:
    lock = partial(locked, tmp_path / "a.lock", "counting", "wait")
    with disk(), lock(), pytest.raises(UsageError, match=rf"^{holder} is counting; wait$"), lock():
        raise AssertionError("two hold it")
    with lock():
        pass


def test_a_lock_whose_file_its_holder_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "lock", list[str]()
    holder = locked(path, "making")
    holder.__enter__()

    def sleep(_: float) -> None:
        path.unlink()
        holder.__exit__(None, None, None)

    monkeypatch.setattr("tokalign.locks.sleep", sleep)
    with (
        locked(path, "making", waits=told.append),
        pytest.raises(UsageError, match="is making"),
        locked(path, "making"),
    ):
        pass
    assert len(told) == 1


def test_a_lock_that_is_a_link_clears_no_other_file(tmp_path: Path) -> None:
    """In a folder of several users, anybody can put one where a build will want its lock."""
    (tmp_path / "own").write_text("precious")
    (tmp_path / "a.lock").symlink_to(tmp_path / "own")
    with (
        pytest.raises(UsageError, match=r"a\.lock cannot be written"),
        locked(tmp_path / "a.lock", "counting"),
    ):
        raise AssertionError("it is held")
    assert (tmp_path / "own").read_text() == "precious"


def test_a_file_system_without_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre without `flock` and NFS without its lock service answer."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UsageError, match=r"a\.lock cannot be written .*file system that has locks"),
        locked(tmp_path / "a.lock", "counting", "wait"),
    ):
        raise AssertionError("nobody holds it")
