"""Whoever asks for something to be written does not wait for it, and nothing is lost at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event, get_ident

import pytest

from tokalign.runtime.written_later import WrittenLater

ENOUGH = 60.0


class Slow:
    """Takes as long to save as `may_end` is not set."""

    def __init__(self) -> None:
        self.began, self.may_end, self.ended = Event(), Event(), Event()
        self.threads: list[int] = []

    def save(self) -> None:
        self.threads.append(get_ident())
        self.began.set()
        assert self.may_end.wait(ENOUGH)
        self.ended.set()


def test_another_thread_writes_and_nobody_waits() -> None:
    later, one = WrittenLater(pause=0.0), Slow()
    later.ask(one.save)
    assert one.began.wait(ENOUGH)
    later.ask(one.save)  # returns while the first time goes on
    assert not one.ended.is_set()
    assert get_ident() not in one.threads
    one.may_end.set()
    later.write_now()
    assert one.ended.is_set()


def test_what_is_asked_for_during_a_pause_is_written_once() -> None:
    later, one, other = WrittenLater(pause=3600.0), Slow(), Slow()
    one.may_end.set()
    other.may_end.set()
    later.ask(one.save)
    assert one.ended.wait(ENOUGH)
    for _ in range(100):
        later.ask(one.save)
        later.ask(other.save)
    assert len(one.threads) == 1
    assert not other.threads
    later.write_now()
    later.write_now()
    assert (len(one.threads), len(other.threads)) == (2, 1)


PROGRAM = """
from pathlib import Path
from tokalign.runtime.written_later import LATER

class One:
    count = 0

    def save(self):
        self.count += 1
        Path("part").write_text(str(self.count))
        Path("part").rename("written")

one = One()
LATER.ask(one.save)
while not Path("written").exists():
    pass
LATER.ask(one.save)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_a_process_that_ends_writes_before(end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=ENOUGH, check=False)
    assert (tmp_path / "written").read_text() == "2"


def test_ctrl_c_ends_the_writing_at_the_end_without_a_word() -> None:
    program = """
import signal
from tokalign.runtime.written_later import LATER
signal.signal(signal.SIGINT, signal.default_int_handler)
LATER._due.add(lambda: signal.raise_signal(signal.SIGINT))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
