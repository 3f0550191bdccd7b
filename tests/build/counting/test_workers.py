"""Processes give results in the order of the tasks, and end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from counted import write_files
from hypothesis import given
from hypothesis import strategies as st
from processes import HUNG, is_running, wait_for

from tokalign.build.counting.workers import plan_processes, workers
from tokalign.errors import OutputError, UsageError
from tokalign.tokenizer.tokenizer import Tokenizer


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
    found = subprocess.run(
        [sys.executable, script], stderr=subprocess.PIPE, text=True, timeout=HUNG
    )
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


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_rest_of_a_result(tmp_path: Path) -> None:
    """The process that sends it is ended in the middle, and the pool reads on."""
    script = tmp_path / "half.py"
    script.write_text(
        "import os, pathlib, time\n"
        "from multiprocessing.connection import Connection\n"
        "from tokalign.build.counting.workers import workers\n"
        "def half(connection, content, *_):\n"
        "    os.write(connection.fileno(), content[:2])\n"
        "    pathlib.Path('sent').touch()\n"
        "    time.sleep(600)\n"
        "def result(*_):\n"
        "    Connection._send = half\n"
        "def tasks():\n"
        "    yield ()\n"
        "    while not os.path.exists('sent'):\n"
        "        time.sleep(0.01)\n"
        "    time.sleep(0.2)\n"
        "    raise KeyboardInterrupt\n"
        "if __name__ == '__main__':\n"
        "    with workers(2, int) as apply:\n"
        "        list(apply(result, tasks()))\n"
    )
    found = subprocess.run(
        [sys.executable, script], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=HUNG
    )
    assert found.stderr.endswith("KeyboardInterrupt\n")


@given(memory=st.integers(0, 1 << 33), jobs=st.integers(1, 64), vocabulary=st.integers(1, 1 << 18))
def test_processes_and_words_fit_in_the_memory(memory: int, jobs: int, vocabulary: int) -> None:
    try:
        processes, words = plan_processes(memory, jobs=jobs, vocabulary_size=vocabulary)
    except UsageError:
        assert memory < 700 << 20
        return
    assert 1 <= processes <= jobs
    assert words >= 1 << 16
    more, _ = plan_processes(memory + (1 << 20), jobs=jobs, vocabulary_size=vocabulary)
    assert more >= processes


COUNT_AND_TELL_MEMORY = """
import resource, sys
from pathlib import Path
from tokalign.build.corpus import Corpus
from tokalign.build.counting import token_ngrams
from tokalign.build.counting.token_ngrams import Counting, count_corpus
from tokalign.names.registry import resolve_tokenizer

if __name__ == "__main__":
    corpus, memory = Path(sys.argv[1]), int(sys.argv[2])
    counting = Counting(Corpus([corpus]), resolve_tokenizer("bielik").tokenizer)
    token_ngrams.jobs_for = lambda _: 2
    count_corpus(counting, memory=memory)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        print(resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.parametrize(("memory", "processes"), [(300 << 20, 0), (700 << 20, 2)])
@pytest.mark.slow
def test_processes_together_hold_no_more_than_they_may(
    tmp_path: Path, bielik: Tokenizer[Any], memory: int, processes: int
) -> None:
    """Twice the largest child bounds both, whenever each of them was at its largest."""
    words = [token.decode().strip() for token in bielik.vocabulary.tokens if token.isalpha()]
    draw = Random(4)
    lines = (
        " ".join(draw.choices(words, k=30)) + "".join(draw.choices(words, k=2))
        for _ in range(30_000)
    )
    [corpus] = write_files(tmp_path, {"a.txt": list(lines)})
    script = tmp_path / "count.py"
    script.write_text(COUNT_AND_TELL_MEMORY)
    # A shell in between: on Linux a process inherits the peak of the one that it is forked from.
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    command = [*shell, sys.executable, str(script), str(corpus), str(memory)]
    told = subprocess.run(command, capture_output=True, check=True).stdout
    own, largest_child = map(int, told.split())
    assert bool(largest_child > 50 << 20) == bool(processes)
    assert own + processes * largest_child < memory


def test_an_interrupt_waits_for_no_task_under_way() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers(2, int) as apply:  # noqa: PT012
        next(apply(_slow_after_the_first, [(n,) for n in range(9)]))
        raise KeyboardInterrupt
    assert time.monotonic() - began < HUNG


def _slow_after_the_first(_: object, number: int) -> None:
    time.sleep(2 * HUNG * (number > 0))
