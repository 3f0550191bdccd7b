"""A killed count resumes from its finished files, and a finished one leaves none."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from counted import Counts, count_plainly, counts_of, small_tokenizer, write_files
from polish import SENTENCES
from processes import wait_for
from small_tokenizers import write_tokenizer

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.runs import is_whole, open_workspace
from tokalign.build.counting.token_ngrams import Counting, count_corpus
from tokalign.errors import UsageError

COUNT_IN_PROCESS = """
import sys
from pathlib import Path
from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting import token_ngrams
from tokalign.build.counting.token_ngrams import Counting, count_corpus
from tokalign.tokenizer.self_check import read_tokenizer

if __name__ == "__main__":
    corpus, tokenizer, workspace = map(Path, sys.argv[1:])
    token_ngrams.jobs_for = lambda _: 2
    token_ngrams._SHARD, token_ngrams._AT_ONCE, token_ngrams._MOST_RUNS = 1, 1, 7
    counting = Counting(Corpus([corpus]), read_tokenizer(tokenizer))
    for level in count_corpus(counting, workspace=workspace).levels:
        print(level.keys.tolist(), level.counts.tolist())
"""


@pytest.fixture
def counting(tmp_path: Path) -> list[str]:
    """A command that counts a corpus of 60 shards with two processes, in `tmp_path/workspace`."""
    [corpus] = write_files(tmp_path, {"a.txt": [f"{SENTENCES[1]} {i}" for i in range(60)]})
    script = tmp_path / "count.py"
    script.write_text(COUNT_IN_PROCESS)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", vocabulary_size=320)
    return [sys.executable, *map(str, (script, corpus, tokenizer, tmp_path / "workspace"))]


@pytest.mark.parametrize("finished", ["*.run", "*.merged"])
@pytest.mark.slow
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


@contextmanager
def fails(_total: int, label: str, _unit: str = "") -> Iterator[Callable[[int], None]]:
    """A stage that fails when all is counted."""
    yield lambda _: None
    if label.startswith("Counting"):
        raise RuntimeError


def test_what_another_count_left_does_not_matter(tmp_path: Path) -> None:
    """Files are named by what they were made from: another corpus, tokenizer or order."""
    workspace, tokenizer = tmp_path / "workspace", small_tokenizer()

    def count(text: str, order: int, stage: Stage = silent) -> list[Counts]:
        corpus = Corpus(write_files(tmp_path, {"a.txt": [text, text]}))
        counting = Counting(corpus, tokenizer, max_order=order)
        return counts_of(counting, workspace=workspace, stage=stage)

    for text, order in (("Ala ma kota", 9), ("Ala ma psa", 3)):
        with pytest.raises(RuntimeError):
            count(text, order, fails)
    assert {path.suffix for path in workspace.iterdir()} >= {".run"}
    expected = count_plainly(tokenizer, [(1, ["Ala ma psa"] * 2)], max_order=9, min_count=2)
    assert count("Ala ma psa", 9) == expected
    assert not workspace.exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "cut to a checksum": lambda data: data[:4],
    "zeros": lambda data: bytes(len(data)),
    "longer": lambda data: data + bytes(4),
    "one bit": lambda data: bytes([data[0] ^ 1, *data[1:]]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_runs_that_a_power_cut_has_damaged_are_made_again(tmp_path: Path, damage: str) -> None:
    """They are not synced, so their names may be on the disk and their content not."""
    lines = [f"{SENTENCES[0]} {i % 3}" for i in range(9)]
    corpus = Corpus(write_files(tmp_path, {"a.txt": lines}))
    workspace, tokenizer = tmp_path / "workspace", small_tokenizer()

    counting = Counting(corpus, tokenizer, max_order=3)
    with pytest.raises(RuntimeError):
        count_corpus(counting, workspace=workspace, stage=fails)
    files = sorted(workspace.glob("*.run"))
    assert files
    assert all(map(is_whole, files))
    for path in files:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        assert not is_whole(path)
    expected = count_plainly(tokenizer, [(1, lines)], max_order=3, min_count=2)
    assert counts_of(counting, workspace=workspace) == expected


def counting_ala(folder: Path) -> Counting:
    return Counting(Corpus(write_files(folder, {"a.txt": ["Ala ma kota"]})), small_tokenizer())


def test_a_workspace_in_use_is_refused(tmp_path: Path) -> None:
    counting, workspace = counting_ala(tmp_path), tmp_path / "workspace"
    with (
        open_workspace(workspace),
        pytest.raises(UsageError, match="is building in"),
    ):
        count_corpus(counting, workspace=workspace)
    assert not workspace.exists()


def test_a_workspace_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    counting, link, disk = counting_ala(tmp_path), tmp_path / "workspace", tmp_path / "disk"
    disk.mkdir()
    link.symlink_to(disk)
    for _ in range(2):
        count_corpus(counting, workspace=link)
        assert (link.is_symlink(), list(disk.iterdir())) == (True, [])


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The workspace is deleted at the end, so it must not be a folder of documents."""
    counting = counting_ala(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"no build has left.*--workspace"):
        count_corpus(counting, workspace=tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in (".DS_Store", "._.DS_Store"):  # of Finder, there and on disks of others
        (empty / name).touch()
    count_corpus(counting, workspace=empty)
    assert not empty.exists()
