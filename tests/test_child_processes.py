"""No process that tokalign starts runs a Python file of the current folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_lines import run, start
from counted import small_tokenizer, write_files
from places import DEMO
from poison import EVERY_NAME, poisoned
from polish import SENTENCES
from written_tables import write_bundle

from tokalign.build.cluster import ClusterJob, run_job
from tokalign.build.corpus import Corpus
from tokalign.build.counting.workers import workers
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
from tokalign.build.installed_packs import InstalledPacks
from tokalign.build.pack import build_pack
from tokalign.child_processes import safe_path, starting

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with poisoned(tmp_path) as folder:
        yield folder


def small_corpus(folder: Path) -> Corpus:
    lines = [sentence.replace("\n", " ") for sentence in SENTENCES] * 3
    return Corpus(write_files(folder, {"a.txt": lines, "b.txt": lines[1:]}))


def count_with_processes(_folder: Path) -> None:
    with workers(2, float) as apply:
        assert list(apply(max, [(n,) for n in range(3)])) == [0.0, 1, 2]


def count_with_datatrove(folder: Path) -> None:
    options = BackoffOptions(max_bytes=4000, workspace=folder / "workspace")
    path, corpus = folder / "pl.dictionary.tok", small_corpus(folder)
    job = ClusterJob(
        target=small_tokenizer(), corpus=corpus, options=options, language="pl", path=path, shares=2
    )
    run_job(job, processes=2)
    assert path.exists()


def compile_a_pack(folder: Path) -> None:
    """What is compiled goes to the folder of tables in which the pack is found."""
    pack = build_pack(small_corpus(folder), BackoffOptions(), language="yy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKALIGN_TABLES", str(folder))
        write_bundle(folder / "yy.pack.tok", pack)
        InstalledPacks(small_tokenizer(), lambda: None).compile(["yy"])
    assert [*folder.glob("*/yy.dictionary.tok")]


@pytest.mark.parametrize("start_some", [count_with_processes, count_with_datatrove, compile_a_pack])
def test_processes_do_not_import_from_the_current_folder(
    start_some: Callable[[Path], None], folder: Path
) -> None:
    start_some(folder)


def test_nor_do_those_that_track_the_locks_of_a_first_pool(folder: Path) -> None:
    """In a process of its own, as one of them serves a process for its whole life."""
    (folder / "list.md").write_text("Żółw idzie.", "utf-8")
    program = "\n".join(
        [
            "import sys",
            "sys.path.remove('')",  # as where a script is run
            "from pathlib import Path",
            "from tokalign.build.document_reader import DocumentReader",
            "with DocumentReader() as read:",
            "    print(read(Path('list.md')))",
        ]
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "Żółw idzie."


def test_those_that_libraries_start_for_a_command_do_not_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(**_: object) -> None:
        subprocess.run([sys.executable, "-c", "import msgpack"], check=True)

    monkeypatch.setattr("tokalign.cli.group.main", main)
    assert run("decode").code == 0
    assert folder.exists()


def test_python_m_runs_nothing_of_the_current_folder_but_what_python_does(tmp_path: Path) -> None:
    """Python itself imports some modules before it runs any program with `-m`."""
    before = [sys.executable, "-I", "-c", "import runpy, sys; print(*sys.modules)"]
    loaded = subprocess.run(before, capture_output=True, text=True, check=True).stdout.split()
    command = "check", "--target", DEMO / "target", "--draft", DEMO / "draft"
    with poisoned(tmp_path, EVERY_NAME.difference(loaded)) as folder:
        process = start(*command, cwd=folder, stdout=subprocess.PIPE)
        process.communicate()
        assert process.returncode == 0


def test_the_environment_is_afterwards_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "", "yes"):
        if before is None:
            monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONSAFEPATH", before)
        one, other = safe_path(), safe_path()
        with one:
            other.__enter__()
        assert os.environ["PYTHONSAFEPATH"]
        other.__exit__(None, None, None)
        assert os.environ.get("PYTHONSAFEPATH") == before


def test_ctrl_c_never_reaches_what_was_started_to_work() -> None:
    program = "import time; print('begun', flush=True); time.sleep(0.5); print('ended')"
    with starting():
        process = start(code=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("ended\n", "")
