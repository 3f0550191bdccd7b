"""The same dictionary from every engine, from killed runs and from several machines.

    python benchmarks/engines.py equal             # the train corpus through each engine
    python benchmarks/engines.py killed            # two of four ranks are killed, and it goes on
    python benchmarks/engines.py nodes             # two commands with ranks of their own

With `--copies N` all of them take the train corpus N times, 131 MB each. All use the shared corpora
(`--shared FOLDER`, default ../shared/data next to the project) and need
`pip install 'tokalign[cluster]'`. Tables are compared by their SHA-256. Seconds depend on what else
the machine does; the load is printed beside them.
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

from tokalign.cli.output import print_json

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
    return [*build, str(corpus), "--output", str(output), *arguments]


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
