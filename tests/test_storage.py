"""Files hold their old content or their new one; paths, JSON and what comes with tokalign."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from click.testing import CliRunner
from places import ROOT

from tokalign import storage as module
from tokalign.build.sources import find_sources
from tokalign.cli import group
from tokalign.errors import (
    BundleError,
    CorpusError,
    MissingAssetError,
    OutputError,
    TokalignError,
    UsageError,
)
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.cost import read_curve
from tokalign.runtime.options import DraftingOptions
from tokalign.storage import (
    LANGUAGES,
    TABLES,
    TEMPORARY_SUFFIX,
    appearing,
    as_path,
    listed,
    parse_json,
    prompts,
    require_writable,
    sample_text,
    shipped,
    write_file,
)
from tokalign.tables.finding import read_drafter_json


@pytest.mark.parametrize("content", [b"", b"\0\r\n\xff", "zażółć\r\ngęślą\n"])
def test_the_content_is_kept_byte_for_byte(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_file(path, content, parents=True)
    write_file(path, content)
    expected = content.encode() if isinstance(content, str) else content
    assert path.read_bytes() == expected
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("path", [".", "..", "/", "folder"])
def test_a_folder_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        write_file(Path(path), "new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def refuse(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("failure", "raised"), [(interrupt, KeyboardInterrupt), (refuse, OutputError)]
)
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_at_any_step_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    failure: Callable[..., None],
    raised: type[BaseException],
) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    monkeypatch.setattr(os if step == "fsync" else Path, step, failure)
    with pytest.raises(raised):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_no_new_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "a" / "b" / "c.txt"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(OutputError):
            write_file(path, "new", parents=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    write_file(path, "new", parents=True)
    assert path.read_text() == "new"


def test_two_threads_write_one_file_and_each_content_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with appearing(path) as mine, ThreadPoolExecutor() as others:
        mine.write_text("mine")
        others.submit(write_file, path, "theirs").result()
        assert path.read_text() == "theirs"
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from tokalign.storage import appearing

with appearing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half of the")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.endswith(TEMPORARY_SUFFIX)


def test_a_place_is_refused_before_the_work_as_it_would_be_after_it(tmp_path: Path) -> None:
    """In one line, with the remedy."""
    file = tmp_path / "file"
    file.touch()
    for wrong in (tmp_path, tmp_path / "none" / "x", file / "x"):
        for refuses in (require_writable, partial(write_file, content="new")):
            with pytest.raises(UsageError) as caught:
                refuses(wrong, remedy="go elsewhere")
            message = str(caught.value)
            assert message.startswith(f"{wrong} cannot be written (")
            assert message.endswith("; go elsewhere")
            assert "\n" not in message
    for right in (file, tmp_path / "new"):
        require_writable(right)


def test_an_installation_is_read_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INSTALLED", tmp_path)
    with pytest.raises(
        MissingAssetError, match=r"tables, which comes with .*install tokalign again"
    ) as caught:
        shipped(TABLES)
    assert "\n" not in str(caught.value)
    (tmp_path / TABLES).mkdir()
    assert shipped(TABLES) == tmp_path / TABLES


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_a_sample_text_and_prompts(language: str) -> None:
    """The sample has many kinds of text, the prompts ten of each kind, all in composed letters."""
    sample = sample_text(language).read_text("utf-8").splitlines()
    kinds = ("encyclopedic", "instructions", "questions")
    texts = [(prompts(language) / f"{kind}.txt").read_text("utf-8").splitlines() for kind in kinds]
    assert [len(lines) for lines in texts] == [10, 10, 10]
    assert len(sample) >= 24
    lines = [*sample, *(line for lines in texts for line in lines)]
    assert len(set(lines)) == len(lines)
    assert all(line == normalize("NFC", line.strip()) for line in lines)
    assert all(line.endswith("?") for line in texts[2])
    assert not any(line.endswith((".", "?", "!")) for line in texts[0])


@pytest.mark.parametrize("find", [sample_text, prompts])
def test_a_language_that_nothing_comes_in_is_an_error(find: Callable[[str], Path]) -> None:
    for language in ("crh", "../uk"):
        with pytest.raises(UsageError, match=r"only in cs, en, hu, lt, pl, sk, uk; give "):
            find(language)


def test_every_public_corpus_says_where_it_is_and_what_it_costs() -> None:
    manifest = tomllib.loads((ROOT / "corpora" / "manifest.toml").read_text("utf-8"))["corpus"]
    fields = {"name", "language", "kind", "page", "licence", "size", "fetch", "format", "steps"}
    for entry in manifest:
        assert fields <= set(entry), entry["name"]
        assert all(entry.values()), entry["name"]
        assert entry["format"] == "txt" or "field" in entry, entry["name"]
    languages = {entry["language"].partition("-")[0] for entry in manifest}
    assert languages >= {"pl", "uk", "cs", "sk", "lt", "hu", "crh"}
    assert len({entry["name"] for entry in manifest}) == len(manifest)


NOBODY = "~no-such-user/x"


def test_a_home_is_expanded_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ala")
    assert as_path("~/kot") == Path("/home/ala/kot")
    assert as_path(NOBODY) == Path(NOBODY)
    with pytest.raises(TokalignError, match=NOBODY):
        read_curve(NOBODY)


def test_a_path_with_a_nul_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of defaults or a chat may have one."""
    monkeypatch.setenv("TOKALIGN_CONFIG", str(tmp_path / "tokalign.toml"))
    (tmp_path / "tokalign.toml").write_text('output = "a\\u0000b"')
    error = CliRunner().invoke(group, ["build", "--target", "bielik"]).exception
    assert isinstance(error, UsageError), error
    assert "has a NUL" in str(error)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(UsageError, match="is empty"):
        as_path("")
    for name in ("dictionary", "alignment", "drafter"):
        with pytest.raises(UsageError, match=f"{name} is empty"):
            DraftingOptions(**{name: ""})  # type: ignore[arg-type]
    for read in (resolve_tokenizer, resolve_model, read_curve):
        with pytest.raises(UsageError, match="is empty"):
            read("")
    with pytest.raises(CorpusError, match="is empty"):
        find_sources([""])


@pytest.mark.parametrize(
    "line",
    [
        f"decode --target {NOBODY} -p x",
        f"decode --target bielik -p @{NOBODY}",
        f"build --target {NOBODY} --dictionary-only",
        f"learn --name notes --target {NOBODY} .",
        f"tables pull {NOBODY}",
    ],
)
def test_a_home_of_nobody_is_a_path_that_is_not_there(line: str) -> None:
    error = CliRunner().invoke(group, line.split()).exception
    assert isinstance(error, TokalignError), error
    assert "~no-such-user" in str(error)


def test_what_is_hidden_is_not_listed(tmp_path: Path) -> None:
    """As what macOS puts beside files on some disks, and into folders that it shows."""
    for name in ("b.tok", "a.tok", "._a.tok", ".DS_Store", "in/0.tok", "in/._0.tok", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = [tmp_path / name for name in ("in/0.tok", "a.tok", "b.tok")]
    assert listed(tmp_path, "*/*.tok", "*.tok") == expected
    assert listed(tmp_path, "*") == sorted(
        tmp_path / name for name in ("a.tok", "b.tok", "c.txt", "in")
    )
    assert listed(tmp_path / "missing", "*") == listed(tmp_path / ("x" * 300), "*") == []


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), "{", b"\xff", "", "nonsense"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # each reader says what it expected
        parse_json(text)


def test_readers_of_strangers_files_tell_of_deep_nesting_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(DEEP)
    with pytest.raises(BundleError, match="nested too deeply"):
        read_drafter_json(tmp_path)
    with pytest.raises(UsageError, match="nested too deeply"):
        read_curve(str(path))
