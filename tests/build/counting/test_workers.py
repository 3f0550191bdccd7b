"""Processes give results in the order of the tasks, and end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_for

from tokalign.build.counting.workers import workers
from tokalign.errors import OutputError


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    with workers(jobs, float) as apply:
        assert list(apply(pow, [(n,) for n in range(1, 20)])) == [0.0] * 19
        assert list(apply(max, [(n,) for n in range(20)])) == list(range(20))


def test_a_process_that_is_killed_is_an_error_of_one_line() -> None:
    """As the system ends the largest process where memory runs out."""
    with (
        pytest.raises(OutputError, match=r"^a process that counts was killed.*goes on"),
        workers(2, os.getpid) as apply,
    ):
        list(apply(os.kill, [(signal.SIGKILL,)]))


@pytest.mark.slow
def test_a_process_that_dies_before_it_has_its_state_is_an_error_too(tmp_path: Path) -> None:
    """As in a program without `if __name__ == "__main__"`. A pipe takes 64 KiB without a reader."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from functools import partial\n"
        "from tokalign.build.counting.workers import workers\n"
        "if __name__ != '__main__':\n"
        "    raise SystemExit\n"
        "with workers(2, partial(int, '1' + ' ' * 1_000_000)) as apply:\n"
        "    list(apply(max, [(1,)]))\n"
    )
    found = subprocess.run([sys.executable, script], stderr=subprocess.PIPE, text=True, timeout=60)
    assert "OutputError: a process that counts was killed" in found.stderr


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(
        "import os, time\n"
        "from tokalign.build.counting.workers import workers\n"
        "def pid(_):\n"
        "    time.sleep(0.2)\n"
        "    return os.getpid()\n"
        "if __name__ == '__main__':\n"
        "    with workers(2, int) as apply:\n"
        "        print(*set(apply(pid, [()] * 8)), flush=True)\n"
        "        time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
