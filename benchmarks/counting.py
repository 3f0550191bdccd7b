"""What counting token n-grams costs.

    python benchmarks/counting.py full      # all of corpus/train: time, rate, memory
    python benchmarks/counting.py compare   # against a Counter over tuples, on 20 MB

Both use the shared corpora (`--shared FOLDER`, default ../shared/data next to the project). Each
measurement runs in a process of its own, one after the other. CPU seconds are those of all its
processes. They tell more than wall seconds if the machine has other work (`load`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click

from tokalign.build.corpus import Corpus
from tokalign.build.counting.token_ngrams import count_token_ngrams
from tokalign.build.counting.workers import peak_memory
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.ngram_tree import grow_tree
from tokalign.cli.output import print_json
from tokalign.names.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
_MAX_ORDER = 9
_TABLE_BYTES = 5_000_000


@click.group()
def benchmark() -> None:
    """Counting: cost, alone and against a Counter."""


def shared_option(command: Any) -> Any:
    """`--shared FOLDER`."""
    return click.option(
        "--shared", default=_SHARED, show_default=True, type=click.Path(path_type=Path, exists=True)
    )(command)


@benchmark.command()
@shared_option
@click.option("--target", default="bielik", show_default=True)
@click.option("--min-count", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def full(shared: Path, target: str, min_count: int, repeats: int) -> None:
    """Count all of corpus/train and build the table of 5 MB."""
    files = sorted((shared / "corpus" / "train").iterdir())
    for _ in range(repeats):
        print_json(_in_process("packed", files, target=target, min_count=min_count, table=True))


@benchmark.command()
@shared_option
@click.option("--target", default="bielik", show_default=True)
@click.option("--megabytes", default=20.0, show_default=True)
@click.option("--min-count", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def compare(shared: Path, target: str, megabytes: float, min_count: int, repeats: int) -> None:
    """Count every n-th line of corpus/train, as tokalign does and with Counters over tuples."""
    files = sorted((shared / "corpus" / "train").iterdir())
    with TemporaryDirectory() as folder:
        sample = _sample(files, megabytes * 1e6, Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {"packed": [], "counter": []}
        for _ in range(repeats):
            for method, measured in runs.items():
                measured.append(
                    _in_process(method, [sample], target=target, min_count=min_count, table=False)
                )
                print_json({"method": method, **measured[-1]})
    [counts] = {str(run["ngrams"]) for measured in runs.values() for run in measured}
    ratios = {
        key: round(_median(runs["counter"], key) / _median(runs["packed"], key), 1)
        for key in ("seconds", "cpu_seconds", "peak_memory_mb")
    }
    print_json({"the_same_counts": counts, "counter / packed": ratios})


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(median(run[key] for run in runs))


def _sample(files: list[Path], text_bytes: float, folder: Path) -> Path:
    """About so many bytes of text: every n-th line."""
    corpus = Corpus(files)
    for _ in corpus.lines():
        pass
    every = max(1, round(corpus.text_bytes / text_bytes))
    sample = folder / "sample.txt"
    with sample.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in islice(corpus.lines(), 0, None, every))
    return sample


def _in_process(method: str, files: list[Path], **options: Any) -> dict[str, Any]:
    """Measure one method in a process of its own."""
    task = json.dumps([method, [str(path) for path in files], options])
    command = [sys.executable, __file__, "run", task]
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1).stdout)
    return told


@benchmark.command(hidden=True)
@click.argument("task")
def run(task: str) -> None:
    """Run in the process that measures."""
    method, names, options = json.loads(task)
    print_json(_measure(method, Corpus([Path(name) for name in names]), **options))


def _measure(
    method: str, corpus: Corpus, *, target: str, min_count: int, table: bool
) -> dict[str, Any]:
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    clock = _Clock()
    if method == "counter":
        with clock.step("counting"):
            ngrams = _count_plainly(corpus, tokenizer, min_count)
    else:
        counted = count_token_ngrams(corpus, tokenizer, min_count=min_count, stage=clock.stage)
        levels = grow_tree(counted)
        ngrams = list(map(len, levels))
        if table:
            with clock.step("making the table"):
                size = len(tokenizer.vocabulary)
                make_table(levels, vocabulary_size=size, max_bytes=_TABLE_BYTES)
    seconds, cpu_seconds = clock.since_start()
    return {
        "text_mb": round(corpus.text_bytes / 1e6, 1),
        "seconds": round(seconds, 1),
        "mb_per_second": round(corpus.text_bytes / seconds / 1e6, 2),
        "cpu_seconds": round(cpu_seconds, 1),
        "mb_per_cpu_second": round(corpus.text_bytes / cpu_seconds / 1e6, 2),
        "peak_memory_mb": round(peak_memory() / 1e6),
        "load": round(os.getloadavg()[0], 1),
        "seconds_of_steps": clock.steps,
        "ngrams": ngrams,
    }


def _count_plainly(corpus: Corpus, tokenizer: Any, min_count: int) -> list[int]:
    counters: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(_MAX_ORDER)]
    lines = corpus.lines()
    while batch := list(islice(lines, 1 << 12)):
        for ids in tokenizer.encode_batch(batch):
            for n, counter in enumerate(counters, 1):
                counter.update(zip(*(ids[i:] for i in range(n)), strict=False))
    return [sum(count >= min_count for count in counter.values()) for counter in counters]


class _Clock:
    """Wall and CPU seconds of this process and of those it waited for."""

    def __init__(self) -> None:
        self._started = self._now()
        self.steps: dict[str, float] = {}

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), sum(os.times()[:4])

    def since_start(self) -> tuple[float, float]:
        """Wall and CPU seconds so far."""
        wall, cpu = self._now()
        return wall - self._started[0], cpu - self._started[1]

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """Add the wall seconds of the body to `steps`."""
        started = time.perf_counter()
        yield
        self.steps[label] = round(time.perf_counter() - started, 1)

    @contextmanager
    def stage(self, _total: int, label: str) -> Iterator[Any]:
        """A `Stage` that is timed as a step."""
        with self.step(label):
            yield lambda _: None


if __name__ == "__main__":
    benchmark()
