"""Counting in shards, runs and ranges equals a Counter over tuples; a killed count goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polish import SENTENCES, texts
from small_tokenizers import write_tokenizer

from tokalign.build.corpus import Corpus
from tokalign.build.counting.memory_budget import share
from tokalign.build.counting.token_ngrams import Chunks, TokenNgrams, count_token_ngrams
from tokalign.build.counting.windows import IdSpace, count_range, join_ranges, sort_windows
from tokalign.build.stages import Stage, silent
from tokalign.errors import CorpusError, UsageError
from tokalign.tokenizer.tokenizer import Tokenizer

Counts = dict[tuple[int, ...], float]

# Few words, so that n-grams repeat; each sentence also as it stands.
paragraphs = st.lists(
    st.one_of(
        st.lists(st.sampled_from(["Ala", "ma", "kota,", "i", "psa."]), max_size=12).map(" ".join),
        texts.map(lambda text: text.replace("\n", " ")),
    ),
    max_size=10,
)


@cache
def small_tokenizer() -> Tokenizer[Any]:
    with TemporaryDirectory() as folder:
        return Tokenizer.from_file(write_tokenizer(Path(folder), vocabulary_size=320))


def write_files(folder: Path, files: Mapping[str, Sequence[str]]) -> list[Path]:
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [folder / name for name in files]


def count_plainly(
    tokenizer: Tokenizer[Any],
    weighted: Sequence[tuple[float, Sequence[str]]],
    *,
    max_order: int,
    min_count: float,
) -> list[Counts]:
    counters: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(max_order)]
    for weight, lines in weighted:
        for line in lines:
            if line.isspace():
                continue
            ids = tokenizer.encode(line.removesuffix("\r"))
            for n, counter in enumerate(counters, 1):
                for start in range(len(ids) - n + 1):
                    counter[tuple(ids[start : start + n])] += weight  # type: ignore[assignment]
    return [{g: c for g, c in counter.items() if c >= min_count} for counter in counters]


def as_dict(ngrams: TokenNgrams) -> Counts:
    return {
        tuple(ids): count
        for ids, count in zip(ngrams.ids.tolist(), ngrams.counts.tolist(), strict=True)
    }


@given(
    files=st.lists(paragraphs, min_size=1, max_size=3).filter(
        lambda files: any(line and not line.isspace() for lines in files for line in lines)
    ),
    shard_characters=st.sampled_from([1, 30, 1 << 20]),
    range_windows=st.sampled_from([1, 2048]),
    max_order=st.integers(1, 9),
    min_count=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_counts_equal_a_counter_whatever_the_chunks(
    files: list[list[str]],
    shard_characters: int,
    range_windows: int,
    max_order: int,
    min_count: int,
) -> None:
    with TemporaryDirectory() as folder:
        named = {f"{i}.txt": lines for i, lines in enumerate(files)}
        counted = list(
            count_token_ngrams(
                Corpus(write_files(Path(folder), named)),
                small_tokenizer(),
                max_order=max_order,
                min_count=min_count,
                chunks=Chunks(shard_characters, range_windows),
            )
        )
    expected = count_plainly(
        small_tokenizer(),
        [(1, lines) for lines in files],
        max_order=max_order,
        min_count=min_count,
    )
    assert [as_dict(ngrams) for ngrams in counted] == expected
    for n, ngrams in enumerate(counted, 1):
        assert ngrams.ids.shape == (len(ngrams), n)
        assert ngrams.counts.dtype == np.int64
        assert ngrams.ids.tolist() == sorted(ngrams.ids.tolist())


def test_counts_equal_a_counter_for_each_tokenizer(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    lines = [sentence.replace("\n", " ") for sentence in SENTENCES * 2]
    corpus = Corpus(write_files(tmp_path, {"a.txt": lines}))
    counted = list(count_token_ngrams(corpus, tokenizer))
    expected = count_plainly(tokenizer, [(1, lines)], max_order=9, min_count=2)
    assert [as_dict(ngrams) for ngrams in counted] == expected


@given(
    lines=st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=12),
    size=st.sampled_from([4, 40_000, 1 << 17]),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    min_count=st.integers(1, 5),
)
@settings(max_examples=200)
def test_ranges_cut_between_any_keys_join_to_the_whole(
    lines: list[list[int]], size: int, cuts: list[int], min_count: int
) -> None:
    """A short n-gram may stand in several ranges: it is pruned when they are joined."""
    space, max_order = IdSpace(size), 6
    ids = np.array([i for line in lines for i in (*line, space.gap)], dtype=space.dtype)
    run = sort_windows(ids, max_order, space)
    whole = count_range([run], [1], min_count=min_count, space=space)
    bounds = sorted({0, len(run), *(cut * len(run) // 12 for cut in cuts)})
    bounds = [
        b for b in bounds if b in (0, len(run)) or (run[b - 1] != run[b])[: space.in_key].any()
    ]
    parts = [
        count_range([run[begin:end]], [1], min_count=min_count, space=space)
        for begin, end in zip(bounds, [*bounds[1:], len(run)], strict=True)
    ]
    for n in range(max_order):
        joined = list(join_ranges(part[n] for part in parts))
        assert sum(map(len, joined)) == len({gram for part in joined for gram in as_dict(part)})
        kept = [as_dict(part[part.counts >= min_count]) for part in (*joined, whole[n])]
        assert {gram: c for part in kept[:-1] for gram, c in part.items()} == kept[-1]


def test_weights_multiply_the_counts_of_a_file(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    files = {"dawne.txt": SENTENCES[:2] * 2, "nowe.txt": [*SENTENCES[:1], SENTENCES[3]]}
    weights = {"dawne.txt": 0.25, "nowe.txt": 1.5}
    corpus = Corpus(write_files(tmp_path, files), weights=weights)
    expected = count_plainly(
        tokenizer,
        [(weights[name], lines) for name, lines in files.items()],
        max_order=9,
        min_count=0.5,
    )
    counted = list(count_token_ngrams(corpus, tokenizer, min_count=0.5, chunks=Chunks(40, 1)))
    assert [as_dict(ngrams) for ngrams in counted] == expected
    assert [file["weight"] for file in corpus.stamp["files"]] == [0.25, 1.5]


def test_whole_weights_give_whole_counts(tmp_path: Path) -> None:
    corpus = Corpus(write_files(tmp_path, {"a.txt": ["Ala ma kota"]}), weights={"a.txt": 3})
    counted = list(count_token_ngrams(corpus, small_tokenizer(), min_count=3))
    assert {str(ngrams.counts.dtype) for ngrams in counted} == {"int64"}
    assert set(counted[0].counts.tolist()) >= {3}


@pytest.mark.parametrize(
    "weights", [{"b.txt": 1.0}, {"a.txt": 0.0}, {"a.txt": -1.0}, {"a.txt": 0.0005}]
)
def test_a_weight_that_cannot_be_honoured_is_refused(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    with pytest.raises(CorpusError, match="weight"):
        Corpus(write_files(tmp_path, {"a.txt": ["Ala"]}), weights=weights)


@pytest.mark.parametrize("max_ngrams", [0, 1, 20, 150, 10_000])
def test_the_least_count_is_raised_until_the_result_is_small_enough(
    tmp_path: Path, max_ngrams: int
) -> None:
    corpus = Corpus(write_files(tmp_path, {"a.txt": SENTENCES[:3] * 5 + SENTENCES * 2}))

    def count(**limits: int) -> list[Counts]:
        counted = count_token_ngrams(corpus, small_tokenizer(), max_order=3, **limits)
        return [as_dict(ngrams) for ngrams in counted]

    kept = count(max_ngrams=max_ngrams)
    assert sum(map(len, kept)) <= max_ngrams
    all_counts = {c for order in count(min_count=1) for c in order.values()}
    raised = min((c for n in kept for c in n.values()), default=int(max(all_counts)) + 1)
    if raised > 2:
        assert kept == count(min_count=int(raised))
        assert sum(map(len, count(min_count=max(c for c in all_counts if c < raised)))) > max_ngrams


@given(memory=st.integers(0, 1 << 33), jobs=st.integers(1, 64), vocabulary=st.integers(1, 1 << 18))
def test_processes_and_words_fit_in_the_memory(memory: int, jobs: int, vocabulary: int) -> None:
    try:
        processes, words = share(memory, jobs=jobs, vocabulary_size=vocabulary)
    except UsageError:
        assert memory < 700 << 20
        return
    assert 1 <= processes <= jobs
    assert words >= 1 << 16
    assert share(memory + (1 << 20), jobs=jobs, vocabulary_size=vocabulary) >= (processes, 0)


COUNT_AND_TELL_MEMORY = """
import resource, sys
from pathlib import Path
from tokalign.build.corpus import Corpus
from tokalign.build.counting.token_ngrams import count_token_ngrams
from tokalign.tokenizer.registry import resolve_tokenizer

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


# -- workspaces --------------------------------------------------------------------------------

COUNT_IN_PROCESS = """
import sys
from pathlib import Path
from tokalign.build.corpus import Corpus
from tokalign.build.counting.token_ngrams import Chunks, count_token_ngrams
from tokalign.tokenizer.tokenizer import Tokenizer

if __name__ == "__main__":
    corpus, tokenizer, workspace = map(Path, sys.argv[1:])
    counted = count_token_ngrams(
        Corpus([corpus]), Tokenizer.from_file(tokenizer),
        workspace=workspace, jobs=2, chunks=Chunks(1, 1),
    )
    for ngrams in counted:
        print(ngrams.ids.tolist(), ngrams.counts.tolist())
"""


@pytest.fixture
def counting(tmp_path: Path) -> list[str]:
    """A command that counts a corpus of 60 shards with two processes, in `tmp_path/workspace`."""
    [corpus] = write_files(tmp_path, {"a.txt": [f"{SENTENCES[1]} {i}" for i in range(60)]})
    script = tmp_path / "count.py"
    script.write_text(COUNT_IN_PROCESS)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", vocabulary_size=320)
    return [sys.executable, *map(str, (script, corpus, tokenizer, tmp_path / "workspace"))]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("finished", ["*.run", "*.part"])
def test_a_killed_count_goes_on_from_its_finished_files(
    tmp_path: Path, counting: list[str], finished: str
) -> None:
    whole = subprocess.run(counting, capture_output=True, check=True).stdout
    workspace = tmp_path / "workspace"
    assert not workspace.exists()
    killed = subprocess.Popen(counting, stdout=subprocess.PIPE)
    wait_for(lambda: len(list(workspace.glob(finished))) >= 5)
    killed.send_signal(signal.SIGKILL)
    assert killed.communicate()[0] == b""
    made = {path: path.stat().st_mtime_ns for path in workspace.glob(finished)}
    resumed = subprocess.Popen(counting, stdout=subprocess.PIPE)
    wait_for(lambda: len(list(workspace.glob(finished))) > len(made) or not workspace.exists())
    if workspace.exists():
        stays = {path: path.stat().st_mtime_ns for path in made}
        assert stays == made
    assert resumed.communicate()[0] == whole
    assert not workspace.exists()


def test_what_another_count_left_does_not_matter(tmp_path: Path) -> None:
    """Files are named by what they were made from: another corpus, tokenizer or order."""
    workspace, tokenizer = tmp_path / "workspace", small_tokenizer()

    def count(text: str, order: int, stage: Stage = silent) -> list[Counts]:
        corpus = Corpus(write_files(tmp_path, {"a.txt": [text, text]}))
        counted = count_token_ngrams(
            corpus, tokenizer, max_order=order, workspace=workspace, stage=stage
        )
        return [as_dict(ngrams) for ngrams in counted]

    @contextmanager
    def fails(_total: int, label: str) -> Iterator[Callable[[int], None]]:
        yield lambda _: None
        if label.startswith("Counting"):
            raise RuntimeError

    for text, order in (("Ala ma kota", 9), ("Ala ma psa", 3)):
        with pytest.raises(RuntimeError):
            count(text, order, fails)
    assert {path.suffix for path in workspace.iterdir()} >= {".run", ".part"}
    expected = count_plainly(tokenizer, [(1, ["Ala ma psa"] * 2)], max_order=9, min_count=2)
    assert count("Ala ma psa", 9) == expected
    assert not workspace.exists()


def test_nothing_is_left_when_not_all_orders_are_asked_for(tmp_path: Path) -> None:
    corpus = Corpus(write_files(tmp_path, {"a.txt": ["Ala ma kota"]}))
    workspace = tmp_path / "workspace"
    counted = iter(count_token_ngrams(corpus, small_tokenizer(), workspace=workspace))
    next(counted)
    assert workspace.exists()
    del counted
    assert not workspace.exists()


def test_a_workspace_in_use_is_refused(tmp_path: Path) -> None:
    corpus = Corpus(write_files(tmp_path, {"a.txt": ["Ala"]}))
    first = count_token_ngrams(corpus, small_tokenizer(), workspace=tmp_path / "workspace")
    next(first)
    with pytest.raises(UsageError, match="in use"):
        next(count_token_ngrams(corpus, small_tokenizer(), workspace=tmp_path / "workspace"))


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
