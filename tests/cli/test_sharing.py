"""Tables are pushed and pulled: verified at both ends, whole or not at all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
from command_lines import Ended, run, start
from fake_hub import Hub, serve_hub, write_snapshot
from places import DEMO
from small_tables import write_alignment, write_dictionary
from small_tokenizers import of_merges
from written_tables import write_bundle

from tokalign.cli.sharing import model_card, push_tables
from tokalign.errors import UsageError
from tokalign.names.aliases import find_alias
from tokalign.storage import TABLES, shipped
from tokalign.tables.bundle import decode_bundle
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer

TARGET: Tokenizer[Any] = of_merges(b"abc ", [(b"a", b"b"), (b"ab", b"c")])
DRAFT: Tokenizer[Any] = of_merges(b"abc ", [(b"b", b"c")])

WHOLE = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"}
"""The files of a model."""


IMPATIENT = "import time; time.sleep = lambda _: None; from tokalign.cli import main; main()"
"""The Hub's library waits a second before it asks again for what was cut."""

RESOLVING = """
from tokalign.names.registry import resolve_model
print(resolve_model("someone/model").folder)
"""


@dataclass
class World:
    """A Hub, a Hub cache and a table folder; `run` runs `tokalign` there.

    In a process of its own: the Hub's library reads its settings at import.
    """

    folder: Path
    address: str
    repositories: dict[str, dict[str, bytes]]
    hub: Hub = field(default_factory=Hub)

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    def run(self, *words: object, program: str = IMPATIENT, **settings: str) -> Ended:
        environment = {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(self.folder / "hf"),
            "TOKALIGN_TABLES": str(self.tables),
            "TMPDIR": str(self.temporary),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = start(*words, code=program, env=os.environ | environment | settings, **pipes)
        out, err = process.communicate()
        return Ended(process.returncode, out, err)

    def succeeds(self, *words: object, **settings: str) -> Ended:
        ended = self.run("tables", *words, **settings)
        assert ended.code == 0, ended.err
        return ended

    def resolved(self, **settings: str) -> Path:
        """The folder of the model someone/model, which is downloaded if it is not in the cache."""
        return Path(self.run(program=RESOLVING, **settings).out.strip())

    @property
    def temporary(self) -> Path:
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def left(self) -> set[str]:
        """Every file in the table folder and every thing among the temporary files."""
        files = (path for path in self.tables.rglob("*") if path.is_file())
        found = {str(path.relative_to(self.tables)) for path in files}
        return found | {path.name for path in self.temporary.iterdir()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    repositories: dict[str, dict[str, bytes]] = {"someone/tables": {}, "someone/model": {}}
    hub = Hub()
    with serve_hub(repositories, hub) as address:
        yield World(tmp_path, address, repositories, hub)


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return write_dictionary(tmp_path / "made" / "pl.dictionary.tok", TARGET, " abc abc")


def test_what_is_pushed_to_the_hub_is_pulled_from_it(
    world: World, dictionary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alignment = write_alignment(dictionary.with_name("d.alignment.tok"), DRAFT, TARGET)
    pushed = world.succeeds("push", dictionary, alignment, "someone/tables", HF_TOKEN="secret")
    assert pushed.err.count("\n") == 2
    assert set(world.repositories["someone/tables"]) == {
        "tokalign/pl.dictionary.tok",
        "tokalign/d.alignment.tok",
    }
    assert "Bearer secret" in world.hub.tokens
    pulls = "tokalign tables pull someone/tables"
    for said in (pulls, "| dictionary | pl |", TARGET.fingerprint[:12]):
        assert said in pushed.out
    pulled = world.succeeds("pull", "someone/tables", "--quiet")
    kept = world.tables / "pulled" / "someone--tables"
    files = {kept / "pl.dictionary.tok": dictionary, kept / "d.alignment.tok": alignment}
    assert (pulled.out.split(), pulled.err) == ([*map(str, files)], "")
    assert all(there.read_bytes() == here.read_bytes() for there, here in files.items())
    assert not any(world.temporary.iterdir())
    monkeypatch.setenv("TOKALIGN_TABLES", str(world.tables))
    assert open_dictionary(TARGET) is not None


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (["no.dictionary.tok", "."], 4, "No such file or directory; give an existing table"),
        (["no/such.drafter", "."], 4, "No such file or directory"),
        (["", "."], 2, "'FILE...': it is empty"),
        (["pl.dictionary.tok", ""], 2, "REPO: it is empty"),
    ],
)
def test_what_is_not_there_is_not_pushed(names: list[str], code: int, said: str) -> None:
    found = run("tables", "push", *names)
    assert (found.code, found.err.splitlines()[-1].count(said)) == (code, 1)


def test_tables_of_several_models_do_not_replace_each_other(world: World, dictionary: Path) -> None:
    other = write_dictionary(world.folder / "pl.dictionary.tok", DRAFT, " abc abc")
    world.run("tables", "push", dictionary, other, "someone/tables").is_refused(2, "--folder")
    for folder, file in (("one", dictionary), ("two", other)):
        world.succeeds("push", file, "someone/tables", "--folder", folder)
    world.succeeds("pull", "someone/tables")
    assert world.left() == {
        "pulled/someone--tables--one/pl.dictionary.tok",
        "pulled/someone--tables--two/pl.dictionary.tok",
    }


def damaged(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize("place", ["folder", "folder/", "deep/er/folder"])
def test_a_folder_that_is_missing_has_to_be_made(
    tmp_path: Path, dictionary: Path, place: str
) -> None:
    missing = f"{tmp_path}/{place}"
    refused = run("tables", "push", dictionary, missing)
    refused.is_refused(4, f"{missing} does not exist; make the folder first, or give a Hub")


def test_a_damaged_table_is_not_pushed(tmp_path: Path, dictionary: Path) -> None:
    (tmp_path / "model").mkdir()
    bad = dictionary.with_name("bad.dictionary.tok")
    bad.write_bytes(damaged(dictionary.read_bytes()))
    refused = run("tables", "push", dictionary, bad, tmp_path / "model")
    refused.is_refused(3, f"{bad} is damaged")
    misnamed = dictionary.rename(dictionary.with_name("pl.tok"))
    run("tables", "push", misnamed, tmp_path / "model").is_refused(2, ".dictionary.tok")
    assert list((tmp_path / "model").iterdir()) == []


def test_of_a_repository_with_a_damaged_table_nothing_is_kept(
    world: World, dictionary: Path
) -> None:
    good = dictionary.read_bytes()
    world.repositories["someone/tables"] |= {
        "a.dictionary.tok": good,
        "tokalign/b.dictionary.tok": damaged(good),
    }
    refused = world.run("tables", "pull", "someone/tables", "--quiet")
    refused.is_refused(3, "someone/tables/tokalign/b.dictionary.tok is damaged")
    assert (refused.out, world.left()) == ("", set())


def test_a_half_download_leaves_nothing(world: World, dictionary: Path) -> None:
    world.repositories["someone/tables"] |= {
        "a.dictionary.tok": dictionary.read_bytes(),
        "b.dictionary.tok": dictionary.read_bytes(),
    }
    world.hub.cut.add("b.dictionary.tok")
    refused = world.run("tables", "pull", "someone/tables", "--quiet")
    refused.is_refused(4, "someone/tables was not downloaded: the transfer failed", "); try again")
    assert (refused.out, world.left()) == ("", set())
    world.hub.cut.clear()
    world.succeeds("pull", "someone/tables")
    assert len(world.left()) == 2


def test_offline_both_say_so_in_one_line(world: World, dictionary: Path) -> None:
    for arguments in (["pull", "bielik"], ["push", dictionary, "someone/tables"]):
        world.run("tables", *arguments, HF_HUB_OFFLINE="1").is_refused(4, "online")
    assert world.left() == set()


def test_what_is_not_there_or_not_allowed_is_said(world: World, dictionary: Path) -> None:
    push = ("push", dictionary)
    for words, code, said in (
        (("pull", "someone/nothing"), 4, "check the name"),
        (("pull", "someone/tables"), 4, "has no tables"),
        ((*push, "someone/nothing"), 4, "hf repo create"),
        ((*push, "someone/tables"), 2, "HF_TOKEN"),
    ):
        world.hub.read_only = code == 2
        world.run("tables", *words).is_refused(code, said)


def test_of_an_alias_the_first_repository_with_tables_is_pulled(
    world: World, dictionary: Path
) -> None:
    alias = find_alias("bielik")
    world.repositories[alias.mlx] = {"config.json": b"{}"}
    world.repositories[alias.repository] = {"pl.dictionary.tok": dictionary.read_bytes()}
    pulled = world.succeeds("pull", "bielik", HF_TOKEN="own")
    assert "Bearer own" in world.hub.tokens
    assert f"bielik -> {alias.repository}\n" in pulled.err
    slug = alias.repository.replace("/", "--")
    assert world.left() == {f"pulled/{slug}/pl.dictionary.tok"}


def test_a_model_that_is_downloaded_brings_its_tables(world: World, dictionary: Path) -> None:
    world.repositories["someone/model"] |= WHOLE
    world.succeeds("push", dictionary, "someone/model")
    folder = world.resolved()
    assert (folder / "tokalign" / "pl.dictionary.tok").is_file()
    assert open_dictionary(TARGET, model_folder=folder) is not None


def test_a_cached_model_gets_tables_that_were_added_later(world: World, dictionary: Path) -> None:
    """And it stays whole: the download of its tables takes nothing's place in the cache."""
    snapshot = write_snapshot(world.folder / "hf" / "hub", "someone/model", WHOLE)
    world.repositories["someone/model"] |= {
        **WHOLE,
        "tokalign/pl.dictionary.tok": dictionary.read_bytes(),
    }
    world.succeeds("pull", "someone/model")
    assert world.left() == {"pulled/someone--model/pl.dictionary.tok"}
    assert world.resolved(HF_HUB_OFFLINE="1") == snapshot


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return Path(copytree(DEMO / "drafter", tmp_path / "made" / "small.drafter"))


def test_a_drafter_is_shared_as_a_folder(world: World, drafter: Path) -> None:
    """Pulled by itself, and with a model that is downloaded."""
    assert "| drafter |" in world.succeeds("push", drafter, "someone/model").out
    pulled = world.succeeds("pull", "someone/model", "--quiet")
    kept = world.tables / "pulled" / "someone--model" / "small.drafter"
    assert pulled.out.split() == [str(kept)]
    files = {file.name: file.read_bytes() for file in drafter.iterdir()}
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == files
    world.repositories["someone/model"] |= WHOLE
    found = world.resolved() / "tokalign" / "small.drafter"
    assert {file.name for file in found.iterdir()} == set(files)


@pytest.mark.parametrize(
    ("name", "kept", "told"),
    [("config.json", 1, "config.json cannot be read"), ("model.safetensors", -3, "is cut short")],
)
def test_of_a_damaged_drafter_nothing_is_kept(
    world: World, drafter: Path, name: str, kept: int, told: str
) -> None:
    world.succeeds("push", drafter, "someone/tables")
    files = world.repositories["someone/tables"]
    files[f"tokalign/small.drafter/{name}"] = files[f"tokalign/small.drafter/{name}"][:kept]
    world.run("tables", "pull", "someone/tables").is_refused(3, told)
    assert world.left() == set()


def test_a_drafter_takes_the_place_of_another_one(world: World, drafter: Path) -> None:
    """Nothing is left of the weights that it had in another form: they would be loaded, too."""
    (drafter / "README.md").write_text("# A drafter")
    world.succeeds("push", drafter, "someone/model")
    world.succeeds("pull", "someone/model")
    kept = world.tables / "pulled" / "someone--model" / "small.drafter"
    for name in ("drafter-0123.safetensors", "model-00001-of-00002.safetensors"):
        copy(kept / "model.safetensors", kept / name)
    (kept / "model.safetensors.index.json").write_text("{}")
    world.succeeds("pull", "someone/model")
    assert {file.name for file in kept.iterdir()} == {file.name for file in drafter.iterdir()}


def test_a_model_with_mtp_is_not_pushed_as_a_drafter(world: World, tmp_path: Path) -> None:
    model = tmp_path / "qwen"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3_5"}')
    (model / "tokenizer.json").touch()
    pushed = world.run("tables", "push", model, "someone/model")
    pushed.is_refused(2, "whose MTP layer comes with it")


@pytest.mark.parametrize("folder", ["", ".", "..", ".hidden", "a/b", "/a"])
def test_a_folder_is_one_at_the_top_level(tmp_path: Path, dictionary: Path, folder: str) -> None:
    """An empty name would make the path an absolute one."""
    with pytest.raises(UsageError, match="top level"):
        push_tables([dictionary], str(tmp_path), folder=folder)
    assert list(tmp_path.rglob("*.tok")) == [dictionary]


def test_a_card_says_of_each_kind_what_it_fits_and_nothing_of_others(
    tmp_path: Path, dictionary: Path, drafter: Path
) -> None:
    pack = shipped(TABLES) / "cs.pack.tok"
    said = {dictionary: "fingerprint", drafter: "trained on", pack: "any tokenizer"}
    for files in ([dictionary], [drafter], [pack], [*said]):
        _, tables = push_tables(files, str(tmp_path))
        card = model_card(tables, "someone/model")
        assert [path for path, words in said.items() if words in card] == files


def test_no_header_writes_more_than_its_cell_of_a_card(tmp_path: Path, dictionary: Path) -> None:
    bundle = decode_bundle(dictionary.read_bytes(), name="pl")
    files = [{"name": "a\x1b[2J | b\n# <img src=x>"}]
    write_bundle(dictionary, replace(bundle, corpus={"files": files}))
    (tmp_path / "model").mkdir()
    _, tables = push_tables([dictionary], str(tmp_path / "model"))
    card = model_card(tables, "someone/model")
    assert "\x1b" not in card
    assert "<img" not in card
    rows = [line for line in card.splitlines() if line.startswith("| `")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 7
    assert not [line for line in card.splitlines() if line.startswith("# ")]
