"""Processes and words are planned, and kept, within a given memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from counted import write_files
from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.counting.workers import plan_processes
from tokalign.errors import UsageError
from tokalign.tokenizer.tokenizer import Tokenizer


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
from tokalign.build.counting.token_ngrams import count_token_ngrams
from tokalign.names.registry import resolve_tokenizer

if __name__ == "__main__":
    corpus, memory = Path(sys.argv[1]), int(sys.argv[2])
    for _ in count_token_ngrams(
        Corpus([corpus]), resolve_tokenizer("bielik").tokenizer, memory=memory, jobs=2
    ):
        pass
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
