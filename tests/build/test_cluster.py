"""The table does not depend on who counts it: tasks of datatrove, machines, killed runs."""

from __future__ import annotations

import inspect
import pickle
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counted import cut_into, small_tokenizer, write_files
from places import ROOT
from polish import SENTENCES
from processes import small_disk

from tokalign.build.cluster import ClusterJob, Task
from tokalign.build.cluster import run_job as run_on_datatrove
from tokalign.build.corpus import Corpus
from tokalign.build.counting import token_ngrams
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.pack import build_pack
from tokalign.build.pipeline import BuildReport
from tokalign.errors import CorpusError, OutputError, UsageError
from tokalign.locks import locked
from tokalign.tables.bundle import encode_bundle

pytest.importorskip("datatrove")

FILES = {
    f"{name}.txt": [sentence.replace("\n", " ") for sentence in SENTENCES[start::3]] * (start + 2)
    for start, name in enumerate("abc")
}


AS_USUAL = 1 << 20, 1 << 18, 1 << 9


@pytest.fixture(autouse=True)
def small_parts() -> Iterator[None]:
    with cut_into(60, 1, 2):
        yield


def job_in(folder: Path, corpus: Corpus, *, shares: int = 3, **options: Any) -> ClusterJob:
    usual = {
        "target": small_tokenizer(),
        "options": BackoffOptions(max_bytes=4000, workspace=folder / "workspace"),
        "language": "pl",
        "path": folder / "pl.dictionary.tok",
    }
    return ClusterJob(corpus=corpus, shares=shares, **usual | options)


def run_job(job: ClusterJob, **options: Any) -> BuildReport:
    """By datatrove's local executor, in this process."""
    return run_on_datatrove(job, processes=1, **options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of the local engine."""
    folder = tmp_path_factory.mktemp("expected")
    corpus = Corpus(write_files(folder, FILES))
    options = BackoffOptions(max_bytes=4000)
    return encode_bundle(build_dictionary(small_tokenizer(), corpus, options, language="pl"))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_files(tmp_path, FILES))


@pytest.mark.slow
@pytest.mark.parametrize("shares", [3, 5])
def test_datatrove_makes_the_same_file(
    tmp_path: Path, corpus: Corpus, expected: bytes, shares: int
) -> None:
    """Also where there are more tasks than files."""
    report = run_job(job_in(tmp_path, corpus, shares=shares))
    assert (tmp_path / "pl.dictionary.tok").read_bytes() == expected
    [table] = report.tables
    assert (table.bytes, table.previous) == (len(expected), None)
    assert report.text_bytes == corpus.size
    assert not (tmp_path / "workspace").exists()


@pytest.mark.slow
def test_datatrove_makes_the_same_pack(tmp_path: Path, corpus: Corpus) -> None:
    options = BackoffOptions(max_bytes=4000, workspace=tmp_path / "workspace")
    with cut_into(*AS_USUAL):
        expected = encode_bundle(build_pack(corpus, options, language="pl"))
    path = tmp_path / "pl.pack.tok"
    run_job(job_in(tmp_path, corpus, shares=2, target=None, options=options, path=path))
    assert path.read_bytes() == expected


@pytest.mark.slow
def test_two_machines_make_the_same_file(
    tmp_path: Path, corpus: Corpus, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see one folder, and each does tasks of its own."""
    from datatrove.executor import local

    monkeypatch.setattr(local.time, "sleep", lambda _: threading.Event().wait(0.1))
    job = job_in(tmp_path, corpus)
    reports: dict[int, Any] = {}

    def machine(first: int, tasks: int) -> None:
        reports[first] = run_job(job, first=first, tasks=tasks)

    other = threading.Thread(target=machine, args=(1, 2))
    other.start()
    machine(0, 1)
    other.join()
    assert (tmp_path / "pl.dictionary.tok").read_bytes() == expected
    assert len(reports[0].tables) == 1
    assert reports[1].tables == ()


@pytest.mark.slow
def test_a_run_goes_on_when_a_corpus_file_is_mended(
    tmp_path: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_files(tmp_path, FILES)
    good = files[1].read_bytes()
    files[1].write_bytes(good + b"\xff\xfe\n")
    with pytest.raises(CorpusError, match=r"b\.txt:\d+: not UTF-8"):
        run_job(job_in(tmp_path, Corpus(files)))
    marks = tmp_path / "workspace" / "logs" / "encode" / "completions"
    assert [path.name for path in marks.iterdir()] == ["00000"]
    files[1].write_bytes(good)
    call = Task.__call__

    def go_on(self: Task, data: object, rank: int, world_size: int) -> None:
        assert (self.step, rank) != ("encode", 0)
        call(self, data, rank, world_size)

    monkeypatch.setattr(Task, "__call__", go_on)
    run_job(job_in(tmp_path, Corpus(files)))
    assert (tmp_path / "pl.dictionary.tok").read_bytes() == expected


@pytest.mark.slow
def test_a_merge_that_finds_no_room_goes_on_when_there_is_room(tmp_path: Path) -> None:
    many = [f"{number} {FILES['a.txt'][number % 3]}" for number in range(400)]
    corpus = Corpus(write_files(tmp_path, {"a.txt": many, "b.txt": ["Ala ma kota."]}))
    task = Task(job_in(tmp_path, corpus, shares=2), "encode")
    with small_disk(9_000), pytest.raises(OutputError, match=r"\.merged cannot be written.*room"):
        task(None, 0, 2)
    assert len(list((tmp_path / "workspace").glob("encode-00000*/*.run"))) > 20
    run_job(job_in(tmp_path, corpus, shares=2))
    options = BackoffOptions(max_bytes=4000)
    with cut_into(*AS_USUAL):
        bundle = build_dictionary(small_tokenizer(), corpus, options, language="pl")
    assert (tmp_path / "pl.dictionary.tok").read_bytes() == encode_bundle(bundle)


@pytest.mark.slow
def test_a_half_written_run_is_named_and_made_again(
    tmp_path: Path, corpus: Corpus, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a power cut leaves it, although datatrove has marked the task as done. What the error says
    is enough to mend it."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "tokalign.build.cluster._make_table", lambda _: BuildReport(seconds=1, peak_memory=1)
        )
        patch.setattr("tokalign.build.cluster.shutil.rmtree", lambda *_, **__: None)
        patch.setattr("tokalign.build.cluster.remove_workspace", lambda _: None)
        run_job(job_in(tmp_path, corpus))
    [path, *_] = (tmp_path / "workspace").glob("*.merged")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(OutputError, match="is only half-written") as caught:
        run_job(job_in(tmp_path, corpus))
    remedy = re.search("; delete (.*) and give the command again", str(caught.value))
    assert remedy is not None
    Path(remedy[1]).unlink()
    run_job(job_in(tmp_path, corpus))
    assert (tmp_path / "pl.dictionary.tok").read_bytes() == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what is blocked is told in /proc")
def test_ctrl_c_is_left_to_the_process_that_waits(tmp_path: Path, corpus: Corpus) -> None:
    """A worker that it ended in the middle left locks, for which datatrove waited."""
    from multiprocess.forkserver import _forkserver

    run_job(job_in(tmp_path, corpus))
    status = Path(f"/proc/{_forkserver._forkserver_pid}/status").read_text()
    blocked = re.search(r"SigBlk:\s*(\w+)", status)
    assert blocked is not None
    assert int(blocked[1], 16) & 1 << (signal.SIGINT - 1)


def test_two_processes_cannot_do_the_same_share(tmp_path: Path, corpus: Corpus) -> None:
    task = Task(job_in(tmp_path, corpus), "encode")
    with (
        locked(tmp_path / "workspace" / "encode-00001.lock", "doing it", "wait"),
        pytest.raises(UsageError, match=r"process \d+ on .* is doing encode-00001.*rank-offset"),
    ):
        task(None, 1, 3)
    task(None, 1, 3)


def test_a_share_that_comes_too_early_says_what_it_waits_for(
    tmp_path: Path, corpus: Corpus
) -> None:
    job = job_in(tmp_path, corpus)
    Task(job, "encode")(None, 0, 3)
    with pytest.raises(UsageError, match=r"encode-00001\.json is not there.*encode"):
        Task(job, "table")(None, 0, 1)


def test_a_folder_of_another_job_is_refused(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_in(tmp_path, corpus)
    job_in(tmp_path, corpus)  # the same again
    with pytest.raises(UsageError, match="other tasks;"):
        job_in(tmp_path, corpus, shares=4)
    fewer = Corpus([tmp_path / "a.txt"])
    with pytest.raises(UsageError, match="other files;"):
        job_in(tmp_path, fewer)
    other = BackoffOptions(max_bytes=5000, workspace=tmp_path / "workspace")
    with pytest.raises(UsageError, match="other language, max_bytes, tasks;"):
        job_in(tmp_path, corpus, shares=1, options=other, language="en")
    monkeypatch.setattr(token_ngrams, "_FORMAT", 0)  # that of another tokalign
    with pytest.raises(UsageError, match="other format;"):
        job_in(tmp_path, corpus)


@pytest.mark.slow
def test_a_run_that_ended_before_its_folder_was_deleted_makes_the_table_again(
    tmp_path: Path, corpus: Corpus, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tokalign.build.cluster.shutil.rmtree", lambda *_, **__: None)
        patch.setattr("tokalign.build.cluster.remove_workspace", lambda _: None)
        job = job_in(tmp_path, corpus)
        run_job(job)
    assert job.folder.exists()
    [table] = run_job(replace(job, path=tmp_path / "other.tok")).tables
    assert table.path.read_bytes() == expected
    assert not job.folder.exists()


class AtOnce:
    """What takes the place of datatrove's executor for Slurm: it does every task at once."""

    def __init__(self, pipeline: list[Task], **options: Any) -> None:
        from datatrove.executor.slurm import SlurmPipelineExecutor

        inspect.signature(SlurmPipelineExecutor).bind(pipeline, **options)
        self.task, self.options = pickle.loads(pickle.dumps(pipeline[0])), options

    def run(self) -> None:
        if self.options["depends"] is not None:
            self.options["depends"].run()
        for rank in range(self.options["tasks"]):
            self.task(None, rank, self.options["tasks"])


def test_the_script_in_the_manual_makes_the_table_of_the_local_engine(
    tmp_path: Path, corpus: Corpus, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datatrove.executor.SlurmPipelineExecutor", AtOnce)
    text = (ROOT / "docs" / "scale.md").read_text("utf-8")
    [script] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for shown, here in {
        '["/shared/fineweb-2/pol_Latn"]': repr([str(tmp_path / name) for name in FILES]),
        "/shared/tables": str(tmp_path / "tables"),
        'resolve_tokenizer("bielik").tokenizer': "small_tokenizer()",
        "BackoffOptions(": "BackoffOptions(max_bytes=4000, ",
        "shares=200": "shares=2",
    }.items():
        assert shown in script
        script = script.replace(shown, here)
    exec(script, {"small_tokenizer": small_tokenizer})
    assert (tmp_path / "tables" / "pl.dictionary.tok").read_bytes() == expected
