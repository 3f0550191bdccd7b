"""A lock is held by one process, and whatever the file system does, an error is one line."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from small_disk import small_disk

from tokalign.atomic_file import locked
from tokalign.errors import UsageError


def test_the_holder_is_named_and_the_next_one_gets_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with (
        locked(lock, "counting", "wait"),
        pytest.raises(UsageError, match=rf"^process {os.getpid()} on .* is counting; wait$"),
        locked(lock, "counting", "wait"),
    ):
        raise AssertionError("two hold it")
    with locked(lock, "counting", "wait"):
        pass


def test_a_full_disk_does_not_stop_who_comes_to_make_room(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with (
        small_disk(0),
        locked(lock, "counting", "wait"),
        pytest.raises(UsageError, match=r"^another process is counting; wait$"),
        locked(lock, "counting", "wait"),
    ):
        raise AssertionError("two hold it")


def test_a_file_system_without_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre without `flock` and NFS without its lock service answer."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UsageError, match=r"a\.lock cannot be locked .*file system that has locks"),
        locked(tmp_path / "a.lock", "counting", "wait"),
    ):
        raise AssertionError("nobody holds it")
