"""The same dictionary from every engine, from killed runs and from several machines.

    python benchmarks/engines.py equal             # the train corpus through each engine
    python benchmarks/engines.py killed            # two of four ranks are killed, and it goes on
    python benchmarks/engines.py nodes             # two commands with ranks of their own
    python benchmarks/engines.py rates             # what each step costs: for docs/scale.md

With `--copies N` all of them take the train corpus N times, 131 MB each. All use the shared corpora
(`--shared FOLDER`, default ../shared/data next to the project) and need
`pip install 'tokalign[cluster]'`; `equal --engine ray` needs Ray too. Tables are compared by their
SHA-256. Seconds depend on what else the machine does; the load is printed beside them, and `rates`
counts processor seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from tokalign.build.corpus import Corpus
from tokalign.build.counting.shares import Counting, Share
from tokalign.build.counting.steps import collect, count, cut, encode, prune
from tokalign.build.counting.token_ngrams import MAX_NGRAMS, make_encoder
from tokalign.build.counting.word_encoder import MAX_WORDS
from tokalign.build.counting.workers import workers
from tokalign.build.dictionary.backoff import make_table
from tokalign.build.dictionary.ngram_tree import grow_tree
from tokalign.build.sources import find_sources
from tokalign.cli.output import print_json
from tokalign.names.registry import resolve_tokenizer
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

shared_option = click.option(
    "--shared", default=_SHARED, show_default=True, type=click.Path(path_type=Path, exists=True)
)
copies_option = click.option(
    "--copies",
    default=0,
    help="Repeat the train corpus so often, under other names. Default: the corpus itself.",
)
tasks_option = click.option("--tasks", default=4, show_default=True)
scratch_option = click.option(
    "--scratch", type=click.Path(path_type=Path), help="A folder on a large disk. Default: TMPDIR."
)


@click.group()
def benchmark() -> None:
    """The same dictionary from every engine."""


@benchmark.command()
@shared_option
@scratch_option
@copies_option
@tasks_option
@click.option("--engine", "engines", multiple=True, default=("local", "datatrove"))
def equal(
    shared: Path, scratch: Path | None, copies: int, tasks: int, engines: tuple[str, ...]
) -> None:
    """Build with each engine."""
    with _folder(scratch) as folder:
        corpus = _repeated(shared, folder / "corpus", copies)
        for engine in engines:
            ranks = [] if engine == "local" else ["--tasks", str(tasks), "--workers", "2"]
            print_json(_build(corpus, folder / engine, "--engine", engine, *ranks))


@benchmark.command()
@shared_option
@scratch_option
@copies_option
@tasks_option
@click.option("--workers", "at_once", default=4, show_default=True)
def killed(shared: Path, scratch: Path | None, copies: int, tasks: int, at_once: int) -> None:
    """Kill two ranks while they encode; when the others are done, give the command again."""
    with _folder(scratch) as folder:
        corpus = _repeated(shared, folder / "corpus", copies)
        arguments = ["--engine", "datatrove", "--tasks", str(tasks), "--workers", str(at_once)]
        workspace = folder / "workspace"
        arguments += ["--workspace", str(workspace)]
        process = subprocess.Popen(
            _command(corpus, folder / "killed", *arguments),
            stderr=subprocess.DEVNULL,
            # A shell starts background jobs with this signal ignored, and a child inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        victims = [_wait(partial(_pid, workspace / f"encode-{rank:05d}.lock")) for rank in (1, 2)]
        runs = sorted(workspace.glob("encode-0000[12]*/*.run"))
        _wait(lambda: len(list(workspace.glob("encode-0000[12]*/*.run"))) > len(runs) + 4)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        marks = workspace / "logs" / "encode" / "completions"
        _wait(lambda: len(list(marks.glob("*"))) == tasks - 2)
        process.send_signal(signal.SIGINT)  # datatrove's pool waits for the two for ever
        print_json({"run": "killed", "exit": process.wait(), "completed": _names(marks)})
        print_json({"run": "resumed", **_build(corpus, folder / "killed", *arguments)})


@benchmark.command()
@shared_option
@scratch_option
@copies_option
def nodes(shared: Path, scratch: Path | None, copies: int) -> None:
    """Two commands, as on two machines: tasks 0-1 and 2-3 of four, with one shared workspace."""
    with _folder(scratch) as folder:
        corpus = _repeated(shared, folder / "corpus", copies)
        both = ["--engine", "datatrove", "--tasks", "4", "--workers", "1", "--local-tasks", "2"]
        both += ["--workspace", str(folder / "workspace")]
        second = _command(corpus, folder / "two", *both, "--local-rank-offset", "2")
        other = subprocess.Popen(second, stderr=subprocess.DEVNULL)
        print_json({"run": "two machines", **_build(corpus, folder / "two", *both)})
        print_json({"exit of the other": other.wait()})


@benchmark.command()
@shared_option
@scratch_option
@copies_option
@tasks_option
def rates(shared: Path, scratch: Path | None, copies: int, tasks: int) -> None:
    """Do every share of every step in this process, and count processor seconds and bytes."""
    with _folder(scratch) as folder:
        target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
        corpus = Corpus(find_sources([str(_repeated(shared, folder / "corpus", copies))]))
        counting = Counting(
            corpus=corpus,
            tokenizer=target,
            max_order=MAX_CONTEXT + 1,
            min_count=2,
            max_ngrams=MAX_NGRAMS,
            folder=folder / "counts",
        )
        counting.folder.mkdir()
        shares = [Share(number, tasks) for number in range(tasks)]
        steps: dict[str, Callable[[Share, Any], None]] = {
            "encode": lambda share, apply: encode(counting, share, apply, lambda _: None),
            "cut": lambda share, apply: cut(counting, share, apply),
            "count": lambda share, apply: count(counting, share, apply, lambda _: None),
            "prune": lambda share, _: prune(counting, share),
        }
        with workers(1, partial(make_encoder, target, MAX_WORDS)) as apply:
            for name, step in steps.items():
                with _clock(name, counting.folder):
                    for share in shares:
                        step(share, apply)
        with _clock("table", counting.folder):
            levels = grow_tree(collect(counting, tasks))
            make_table(levels, vocabulary_size=len(target.vocabulary), max_bytes=4_900_000)
        print_json({"ngrams": [len(level) for level in levels]})


@contextmanager
def _clock(step: str, folder: Path) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        sizes[path.suffix] = sizes.get(path.suffix, 0) + path.stat().st_size * path.is_file()
    print_json(
        {
            "step": step,
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "seconds": round(time.perf_counter() - wall, 1),
            "load": round(os.getloadavg()[0], 1),
            "megabytes_on_disk": {kind: round(size / 1e6, 1) for kind, size in sizes.items()},
        }
    )


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch, prefix="tokalign-engines-") as name:
        yield Path(name)


def _repeated(shared: Path, folder: Path, copies: int) -> Path:
    """The train corpus, or a folder with links to it under as many names as copies."""
    if not copies:
        return shared / "corpus" / "train"
    for number in range(copies):
        copy = folder / f"copy{number:02d}"
        copy.mkdir(parents=True)
        for file in (shared / "corpus" / "train").iterdir():
            (copy / file.name).symlink_to(file)
    return folder


def _command(corpus: Path, output: Path, *arguments: str) -> list[str]:
    fixed = ["--target", "bielik", "--dictionary-only", "--language", "pl", "--json"]
    build = [sys.executable, "-m", "tokalign", "build", *fixed]
    return [*build, "--corpus", str(corpus), "--output", str(output), *arguments]


def _build(corpus: Path, output: Path, *arguments: str) -> dict[str, Any]:
    command = _command(corpus, output, *arguments)
    started = time.perf_counter()
    done = subprocess.run(command, stdout=-1, stderr=-1, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr[-2000:])
    report = json.loads(done.stdout)
    [table] = [Path(name) for name in report["files"]]
    return {
        "arguments": " ".join(arguments),
        "sha256": hashlib.sha256(table.read_bytes()).hexdigest(),
        "text_mb": round(report["bytes"] / 1e6, 1),
        "seconds": round(time.perf_counter() - started, 1),
        "mb_per_second": round(report["megabytes_per_second"], 2),
        "peak_memory_mb": report["peak_memory_mb"],
        "load": round(os.getloadavg()[0], 1),
    }


def _pid(lock: Path) -> int:
    """The process that a lock file names, 0 if there is none yet."""
    words = lock.read_text().split() if lock.exists() else []
    return int(words[1]) if len(words) > 1 else 0


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _wait(condition: Callable[[], Any], seconds: float = 3600) -> Any:
    """What the condition returns once that is true."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise click.ClickException("waited in vain")
        time.sleep(0.2)
    return result


if __name__ == "__main__":
    benchmark()
