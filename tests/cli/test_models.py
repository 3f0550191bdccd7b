"""`tokalign models`, names as words, the config file, completion, and what is installed."""

from __future__ import annotations

import json
import os
import plistlib
import shlex
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_lines import run
from places import DEMO

import tokalign
from tokalign.cli.login_item import install, uninstall
from tokalign.cli.models import _places
from tokalign.errors import MissingAssetError, UsageError
from tokalign.installation import install_line
from tokalign.names.aliases import aliases
from tokalign.names.memory import machine_memory, require_bytes, weights_bytes

SHORT = ("--ignore-chat-template", "--method", "plain", "-m", "3", "--json")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "tables"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TOKALIGN_CONFIG", str(tmp_path / "tokalign.toml"))
    (tmp_path / "tokalign.toml").touch()
    monkeypatch.setattr("tokalign.cli.entries.user_state_path", lambda *_, **__: tmp_path / "state")
    return tmp_path


# -- models ----------------------------------------------------------------------------------------


def test_every_alias_is_listed_with_its_size(home: Path) -> None:
    listed = run("models", "--json").json
    names = {name for model in listed["models"] for name in (model["name"], *model["also"])}
    assert names == set(aliases())
    assert all(model["bytes"] > 1e8 for model in listed["models"])
    assert "smollm2" in run("models").out
    assert "No such command 'pul'" in run("models", "pul", "smollm2").err


def test_what_is_kept_is_listed_and_deleted_by_name(home: Path) -> None:
    kept = home / "cache" / "curves" / "a.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    built = home / "tables" / "mine"
    built.mkdir(parents=True)
    (built / "pl.dictionary.tok").touch()
    (home / "tables" / ("0" * 16)).mkdir()  # of a pack whose compilation was stopped
    history = home / "state" / "chat-history"
    history.parent.mkdir(parents=True)
    history.write_text("+Zażółć\n")
    sizes = {one["name"]: one["bytes"] for one in run("models", "--json").json["files"]}
    assert sizes["curves"] == 2
    assert "mine" in sizes
    assert "0" * 16 not in sizes
    assert sizes["chat-history"] == history.stat().st_size
    assert run("models", "rm", "curves", "chat-history", "curves").out.count("freed") == 2
    assert not kept.parent.exists()
    assert not history.exists()
    for name in ("curves", ""):
        run("models", "rm", name).is_refused(4, f"nothing of {name!r} is here")
    run("models", "rm", "mine").is_refused(2, "not deleted by this command")
    assert built.exists()


def test_a_model_of_the_hub_cache_is_deleted_by_its_alias(home: Path) -> None:
    repository = aliases()["bielik-1.5b"].mlx
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    assert repository in {place.name for place in _places()}
    run("models", "rm", "Bielik-1.5B")
    assert not folder.exists()


def test_what_a_link_leads_to_is_not_deleted(home: Path) -> None:
    """A model that lies on another disk, with a link to it in the cache."""
    (home / "disk" / "snapshots" / "x").mkdir(parents=True)
    (home / "hub").mkdir()
    (home / "hub" / "models--a--b").symlink_to(home / "disk")
    run("models", "rm", "a/b").is_refused(2, "models--a--b", "delete the link")
    assert (home / "disk" / "snapshots").exists()


def test_a_cache_that_is_no_folder_holds_no_models(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "hub").touch()
    assert run("models", "list").code == 0


def test_weights_that_do_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = weights_bytes(DEMO / "target")
    assert 0 < size < machine_memory()
    assert weights_bytes(DEMO / "target", dtype="float16") < size
    monkeypatch.setattr("tokalign.names.memory.machine_memory", lambda: size - 1)
    with pytest.raises(UsageError, match="of memory; choose a smaller model"):
        require_bytes(size)
    run("decode", DEMO / "target", "Ala", *SHORT).is_refused(2, "of memory; choose a smaller model")


# -- names and prompts without options -------------------------------------------------------------


def test_words_mean_what_their_options_mean() -> None:
    target = str(DEMO / "target")
    usual = run("decode", "--target", target, "-p", "Ala ma", *SHORT).json
    for typed in (["decode", target, "Ala ma"], ["decode", "--target", target, "Ala ma"]):
        assert run(*typed, *SHORT).json["token_ids"] == usual["token_ids"]
    piped = run("decode", target, *SHORT, typed="Ala ma").json
    assert piped["token_ids"] == usual["token_ids"]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("decode bielik Ala ma", "one word too many"),
        ("chat --target bielik pl", "one word too many; chat takes a model's name alone"),
        ("decode", "no model is named"),
        ("chat", "no model is named"),
        ("decode smolm2 Ala", "did you mean smollm2?"),
    ],
)
def test_wrong_words_are_refused(home: Path, typed: str, told: str) -> None:
    run(*typed.split(), typed="x").is_refused(2, told)


def test_a_command_of_nearly_this_name_is_named() -> None:
    ended = run("decod")
    assert ended.code == 2
    assert "Did you mean 'decode'?" in ended.err


@pytest.mark.parametrize("text", ["Co to jest TCP/IP?", "Ala ma kota. " * 900])
def test_a_prompt_in_the_place_of_a_name_is_not_repeated_whole(home: Path, text: str) -> None:
    ended = run("decode", text, typed="x")
    ended.is_refused(2, "a prompt comes after the name of a model")
    assert len(ended.err) < 400


def test_a_name_is_checked_before_anything_heavy_is_imported() -> None:
    program = (
        "import sys; from tokalign.cli import main\n"
        "sys.argv = ['tokalign', 'decode', 'smolm2', 'x']\n"
        "try: main()\n"
        "finally: print(sorted({'mlx', 'mlx_lm', 'tokenizers', 'transformers'} & {*sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "[]\n")


def test_python_knows_aliases_too() -> None:
    with pytest.raises(UsageError, match="did you mean smollm2"):
        tokalign.load("smolm2")
    with pytest.raises(MissingAssetError):
        tokalign.load("./nowhere/model")


# -- the config file -------------------------------------------------------------------------------


def test_the_config_file_gives_defaults_that_the_command_line_overrides(home: Path) -> None:
    (home / "tokalign.toml").write_text(
        f'target = "{DEMO / "target"}"\nport = 80\nstop = "never"\n'
        "[decode]\nmax-tokens = 3\nignore-chat-template = true\n"
    )
    configured = run("decode", "Ala ma", "--method", "plain", "--json").json
    assert configured["generation_tokens"] == 3
    assert run("decode", "Ala ma", "-m", "2", "--json").json["generation_tokens"] == 2


def test_the_config_file_may_begin_with_a_mark(home: Path) -> None:
    (home / "tokalign.toml").write_text("temp = -1\n", "utf-8-sig")
    assert "(temp is set in" in run("decode", "smollm2", "x").err


def test_a_config_file_that_is_named_has_to_be_there(home: Path) -> None:
    (home / "tokalign.toml").unlink()
    run("models", "list").is_refused(2, "unset TOKALIGN_CONFIG")


def test_a_user_without_a_home_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("CACHE", "CONFIG", "DATA", "STATE")
    for variable in ("HOME", "TOKALIGN_CONFIG", *(f"XDG_{name}_HOME" for name in names)):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1 << 30)  # whom no system knows
    run("models", "list").is_refused(2, "set HOME")
    monkeypatch.setenv("HOME", "")  # as a service may have it
    run("models", "list").is_refused(2, "set HOME")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[decode]\nmax-token = 3", "no option --max-token"),
        ("x =", "cannot be"),
        ("max-token = 3", "no command takes max-token"),
        ("[decoding]\nmax-tokens = 3", "no command takes decoding"),
        ('folder = "a"', "no command takes folder"),
        ("decode = 3", "write [decode]"),
        ("seed = 1979-05-27", "not a date"),
        ("max-tokens = [3]", "not a list"),
        ("stop = [[3]]", "not a list"),
        ("color = {}", "not a dict"),
    ],
)
def test_a_wrong_config_file_is_named(home: Path, text: str, told: str) -> None:
    (home / "tokalign.toml").write_text(text)
    run("decode", "smollm2", "x").is_refused(2, told, "tokalign.toml")
    assert "--max-tokens" in run("decode", "--help-all").out  # as it says


@pytest.mark.parametrize(
    ("text", "typed", "told"),
    [
        ('max-tokens = "many"', (), "(max-tokens is set in"),
        ("temp = -1", (), "(temp is set in"),
        ('method = "odd"', (), "(method is set in"),
        ('draft = "/nowhere"', (), "(draft is set in"),
        ('language = "xx"', ("--method=dictionary",), "(language is set in"),
        (
            'max-tokens = 3\ntranslation = "odd"',
            (f"--draft={DEMO / 'draft'}",),
            "(translation is set in",
        ),
    ],
)
def test_an_error_says_what_of_it_the_config_file_states(
    home: Path, text: str, typed: tuple[str, ...], told: str
) -> None:
    (home / "tokalign.toml").write_text(f"[decode]\n{text}\n")
    ended = run("decode", str(DEMO / "target"), "x", *typed)
    assert ended.code in (2, 4)
    assert told in " ".join(ended.err.split())
    assert "tokalign.toml)" in ended.err
    own = ("--max-tokens=0", "--temp=-1", "--method=x", "--draft=/none", "--translation=none")
    assert "is set in" not in run("decode", str(DEMO / "target"), "x", *own).err


def test_a_table_of_a_command_is_no_option_of_that_name(home: Path) -> None:
    (home / "tokalign.toml").write_text("[calibrate]\nbudget = 4\n")
    assert "no model is named" in run("chat").err


def test_what_an_option_needs_may_be_in_the_config_file(home: Path) -> None:
    (home / "tokalign.toml").write_text(f'target = "{DEMO / "target"}"\ntemp = 0.5\n')
    typed = ("--top-p", "0.9", "--draft", DEMO / "draft", "--translation", "exact")
    assert run("decode", "-p", "Ala ma", *typed, *SHORT[:1], "-m", "3", "--json").json["seed"]
    run("decode", "-p", "Ala ma", "--kv-group-size", "32").is_refused(2, "without --kv-bits")


def test_what_is_typed_goes_before_the_config_file(home: Path) -> None:
    """Also where the two exclude each other: what the file says gives way."""
    pair = f'target = "{DEMO / "target"}"\ndraft = "{DEMO / "draft"}"\n'
    (home / "tokalign.toml").write_text(f"{pair}num-draft-tokens = 3\ntop-p = 0.5\n")
    run("calibrate", "--drafter", "/nowhere").is_refused(4, "/nowhere")
    assert run("decode", "Ala ma", *SHORT).json["generation_tokens"] == 3
    (home / "a.txt").write_text("Ala ma kota, a kot ma Alę.\n" * 9)
    given = ("--language", "pl", home / "a.txt", "--output", home / "out", "--json")
    for kind, path in (("dictionary-only", "target/pl.dictionary"), ("pack", "pl.pack")):
        assert run("build", f"--{kind}", *given).json["files"] == [f"{home}/out/{path}.tok"]


def test_a_draft_for_all_commands_is_not_taught(home: Path) -> None:
    (home / "tokalign.toml").write_text(f'draft = "{DEMO / "draft"}"\n')
    train = ("train", "--target", DEMO / "target", "--output", home / "a", "--dry-run", "--json")
    assert run(*train).json["kind"] == "redrafter"
    (home / "tokalign.toml").write_text(f'[train]\ndraft = "{DEMO / "draft"}"\n')
    assert run(*train, "--from-model", "99").json["kind"] == "model"


def test_a_language_for_decoding_does_not_name_a_table_or_a_text(home: Path) -> None:
    (home / "tokalign.toml").write_text('language = "cs,en"\n')
    (home / "a.txt").write_text("Ala ma kota, a kot ma Alę.\n" * 9)
    given = ("build", "--dictionary-only", "--target", DEMO / "target", home / "a.txt")
    run(*given).is_refused(2, "none was given; say which it is with --language")
    assert "the sample in" in run("check", "--target", DEMO / "target").err
    (home / "tokalign.toml").write_text('[check]\nlanguage = "cs,en"\n')
    run("check", "--target", DEMO / "target").is_refused(2, "cs,en")


def test_a_table_of_a_group_is_refused_with_a_page_that_it_has(home: Path) -> None:
    (home / "tokalign.toml").write_text('[tables]\nfolder = "a"\n')
    run("tables", "list").is_refused(2, "tables has no option --folder", "tokalign tables --help")
    assert "push" in run("tables", "--help").out


def test_words_that_are_typed_replace_the_target_in_the_config_file(home: Path) -> None:
    (home / "tokalign.toml").write_text(f'target = "{DEMO / "draft"}"\n')
    target = str(DEMO / "target")
    assert run("decode", target, "Ala ma", *SHORT).json["target"] == target
    assert run("decode", "Ala ma", *SHORT).json["target"] == str(DEMO / "draft")
    run("decode", target, "Ala", "ma", *SHORT).is_refused(2, "'ma' is one word too many")


def test_a_home_is_found_where_no_shell_has_expanded_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TOKALIGN_CONFIG", "~/tokalign.toml")
    (home / "sample.txt").write_text("Ala ma kota.\n")
    (home / "tokalign.toml").write_text('[check]\nhtml = "~/page.html"\n')
    run("check", "--target", DEMO / "target", "~/sample.txt", "--json")
    assert (home / "page.html").is_file()


# -- completion, versions, remedies ----------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_aliases(shell: str) -> None:
    def completed(words: str) -> str:
        last = words.rpartition(" ")[2]
        count = len(words.split(" ")) - 1
        number = last if shell == "fish" else str(count)
        asked = {"_TOKALIGN_COMPLETE": f"{shell}_complete", "COMP_WORDS": words}
        program = (
            "import sys; sys.argv[0] = 'tokalign'; from tokalign.__main__ import program; program()"
        )
        run = [sys.executable, "-c", program]
        environment = os.environ | asked | {"COMP_CWORD": number}
        return subprocess.run(run, env=environment, capture_output=True, text=True).stdout

    assert "decode" in completed("tokalign dec")
    assert "--max-tokens" in completed("tokalign decode --max")
    for typed in ("tokalign decode smol", "tokalign chat --target smol"):
        assert "smollm2" in completed(typed)


def test_the_version_names_what_runs_models() -> None:
    shown = run("--version").out
    assert shown.startswith(f"tokalign {tokalign.__version__}, mlx 0.")
    assert ", mlx-lm 0." in shown


def test_a_remedy_is_the_line_of_this_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/x/bin/python")
    assert install_line("a", alone=True) == "/x/bin/python -m pip install --no-deps a"
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert install_line("a") == "pip install a"
    assert install_line(extra="mlx").startswith("pip install 'tokalign[mlx]")
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert install_line("a") == "pipx runpip tokalign install a"
    (tmp_path / "pipx_metadata.json").unlink()
    monkeypatch.setattr("tokalign.installation.find_spec", lambda _name: None)  # of `uv tool`
    assert install_line("a", alone=True) == "uv pip install --python /x/bin/python --no-deps a"
    assert "'tokalign[documents]" in install_line(extra="documents")


def test_a_remedy_names_where_tokalign_was_installed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no package index, so its name alone installs nothing."""
    origin: dict[str, Any] = {}
    installed = SimpleNamespace(read_text=lambda _name: json.dumps(origin))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: installed)
    (tmp_path / "moje źródła").mkdir()
    origin["url"] = (tmp_path / "moje źródła").as_uri()
    assert install_line(extra="mlx").endswith(f"'tokalign[mlx] @ {origin['url']}'")
    origin["url"] = (tmp_path / "gone").as_uri()
    assert install_line(extra="mlx").endswith("'tokalign[mlx]'")
    origin.update(url="https://x.org/tokalign", vcs_info={"vcs": "git"})
    assert install_line(extra="mlx").endswith("'tokalign[mlx] @ git+https://x.org/tokalign'")


# -- a login item ----------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_login_item_serves_with_the_same_words_and_goes_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr("tokalign.cli.login_item.sys.platform", platform)
    monkeypatch.setenv("HOME", str(home / "Anna Nowak"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("PATH", str(home))
    stopped = home / "stopped"
    for name in ("systemctl", "launchctl"):
        (home / name).write_text(f'#!/bin/sh\necho "$*" >>{stopped}\n')
        (home / name).chmod(0o700)
    monkeypatch.setenv("LANG", "pl_PL.UTF-8")  # which decides where a prompt's words do not
    monkeypatch.setenv("TOKALIGN_API_KEY", r"50 % 'off' \d")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SKYLAKEX")
    monkeypatch.chdir(home)
    words = [r"./my \model", "--port", "8123"]
    install(["other"])
    assert not stopped.exists()
    path, start = install(words)
    assert platform == "linux" or shlex.split(start)[-1] == str(path)
    assert len(stopped.read_text().splitlines()) == 1  # or the old one would go on serving
    assert path.stat().st_mode & 0o777 == 0o600
    if platform == "darwin":
        item = plistlib.loads(path.read_bytes())
        assert item["ProcessType"] == "Interactive"  # else launchd throttles its CPU and disk
        started, folder = item["ProgramArguments"], item["WorkingDirectory"]
        carried = [f"{name}={it}" for name, it in item["EnvironmentVariables"].items()]
    else:
        unit = ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        started = shlex.split(unit["Service"]["ExecStart"].replace("\\\\", "\\"))
        folder = unit["Service"]["WorkingDirectory"]
        variables = unit["Service"]["Environment"]
        assert (
            r"\\d" in variables
        )  # systemd passes over a line with an escape that it does not know
        carried = shlex.split(variables.replace("%%", "%").replace("\\\\", "\\"))
        assert unit["Service"]["SuccessExitStatus"] == "143"  # SIGTERM while the model is loaded
    assert started == [sys.executable, "-P", "-m", "tokalign", "serve", *words]
    # A login begins in another folder, and without what a shell has set.
    assert folder == str(home)
    assert {r"TOKALIGN_API_KEY=50 % 'off' \d", "OPENBLAS_CORETYPE=SKYLAKEX"} <= {*carried}
    assert "LANG=pl_PL.UTF-8" in carried
    assert uninstall() == path
    assert not path.exists()
    with pytest.raises(UsageError, match="no login item"):
        uninstall()
