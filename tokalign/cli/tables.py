"""`tokalign tables`: show, verify, pull, push and forget table files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tokalign.cli.command import FILE, NAME, Command, Option, flag
from tokalign.cli.options import TRUST
from tokalign.cli.output import complain, echo, flags, note, one_line, print_json, show
from tokalign.errors import TokalignError, UsageError
from tokalign.storage import as_path, open_regular

_FILES = click.Argument(["files"], nargs=-1, required=True, type=FILE, metavar="FILE...")
_NAMES = click.Argument(["names"], nargs=-1, metavar="[NAME]...")
_REMEMBERED = flag("--remembered", "Delete what --remember keeps, and all contexts on disk.")
_REPOSITORY = click.Argument(["repository"], type=NAME, metavar="REPO")
_FOLDER = Option(
    "--folder",
    "Folder of REPO; one for each model whose tables it has.",
    metavar="NAME",
    default="tokalign",
)


@click.group("tables")
def command() -> None:
    """Show, verify, pull and push table files, and forget what was learned from documents."""


_SHOWN = click.Argument(["file"], metavar="TABLE|DRAFTER|TOKENIZER")


@command.command("show", cls=Command, params=[TRUST, _SHOWN])
def show_table(*, file: str, trust_remote_code: bool) -> None:
    """Show what a table file is and holds, what a trained drafter's folder says, or how far a
    model's tokenizer is understood.

    A tokenizer is an alias, a model's folder, a tokenizer file or a Hub repository.
    """
    path = as_path(file)
    if found := _describe_drafter(path):
        show(found)
    elif _is_tokenizer(path):
        show(_describe_tokenizer(file, trust_remote_code=trust_remote_code))
    else:
        show(_describe_table(path))


@command.command("verify", cls=Command, params=[_FILES])
def verify(*, files: tuple[Path, ...]) -> None:
    """Check every byte of FILES against their checksums, and that their tables can be read.

    All files are checked; the exit code is 3 if one of them is damaged, 4 if one is missing.
    """
    from tokalign.tables.opening import verify_table

    problems: dict[Path, TokalignError | None] = dict.fromkeys(files)
    for path in files:
        try:
            verify_table(path)
        except TokalignError as error:
            problems[path] = error
    if flags.as_json:
        checked = [
            {"path": str(path), "ok": problem is None, "problem": problem and str(problem)}
            for path, problem in problems.items()
        ]
        print_json({"ok": not any(problems.values()), "files": checked})
    else:
        for path, problem in problems.items():
            if problem is None:
                echo(one_line(f"{path}: ok"))
            else:
                complain(problem)
    if codes := [problem.exit_code for problem in problems.values() if problem is not None]:
        raise click.exceptions.Exit(max(codes))


@command.command("pull", cls=Command, params=[click.Argument(["name"], type=NAME)])
def pull(*, name: str) -> None:
    """Fetch the tables of NAME into your table folder, where all commands and the API find them.

    NAME is an alias, a repository on the Hub, of a model or of tables alone, or a local folder.
    Every byte of a table is verified first; of a damaged or half download nothing is kept. A model
    that was downloaded before tables were added to its repository gets them this way.
    """
    from tokalign.cli.sharing import pull_tables

    names = [str(path) for path in pull_tables(name, note=note)]
    show({"files": names}, lambda: "\n".join(map(one_line, names)))


@command.command("push", cls=Command, params=[_FILES, _REPOSITORY, _FOLDER])
def push(*, files: tuple[Path, ...], repository: str, folder: str) -> None:
    """Verify the tables in FILEs and put them into REPO, where `tables pull REPO` finds them.

    A FILE may be a trained drafter's folder; in REPO it is called `drafter`, or NAME.drafter.

    REPO is a repository on the Hub that you may write to (owner/name), or a local folder such as a
    model's. A section for the README of REPO goes to stdout.
    """
    from tokalign.cli.sharing import model_card, push_tables

    name, tables = push_tables(files, repository, folder=folder)
    for table in tables:
        note(f"{table.name} -> {name}/{table.about['path']}")
    card = model_card(tables, "OWNER/NAME" if as_path(name).is_dir() else name)
    pushed = {"repository": name, "files": [table.about for table in tables], "model_card": card}
    show(pushed, lambda: card.removesuffix("\n"))


@command.command("forget", cls=Command, params=[_NAMES, _REMEMBERED])
def forget(*, names: tuple[str, ...], remembered: bool) -> None:
    """Delete everything that `tokalign learn` keeps under each NAME.

    The documents themselves are not touched.
    """
    from tokalign.build.learning import Collection, check_name
    from tokalign.runtime.remembered import forget_remembered

    if not names and not remembered:
        raise UsageError(
            "there is nothing to forget; give a NAME of tokalign learn, or --remembered"
        )
    collections = [Collection(check_name(name)) for name in dict.fromkeys(names)]
    for collection in collections:
        collection.require()  # all of them, before one is deleted
    for collection in collections:
        collection.forget()
    folders = [collection.folder for collection in collections]
    if remembered:
        folders += forget_remembered()
    if folders or flags.as_json:
        show({"forgotten": [str(folder) for folder in folders]})
    else:
        note("nothing was remembered")


def _is_tokenizer(path: Path) -> bool:
    """Whether this is no file with a table's magic, and not meant to be one."""
    from tokalign.tables.bundle import MAGIC

    try:
        with open_regular(path) as file:
            return path.suffix != ".tok" and file.read(len(MAGIC)) != MAGIC
    except OSError:
        return path.suffix != ".tok"


def _describe_table(path: Path) -> dict[str, Any]:
    from tokalign.tables.bundle import FORMAT_VERSION, read_bundle

    bundle = read_bundle(path)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "format_version": FORMAT_VERSION,
        "kind": bundle.kind,
        "fingerprints": bundle.fingerprints,
        "corpus": bundle.corpus,
        "parameters": bundle.parameters,
        "statistics": bundle.statistics,
        "sections": {name: len(section) for name, section in bundle.sections.items()},
    }


def _describe_drafter(folder: Path) -> dict[str, Any] | None:
    """What the folder of a trained drafter says; None for another one, or with a tokenizer."""
    from tokalign.tables.drafter_config import trained_for
    from tokalign.tables.drafter_formats import drafter_format
    from tokalign.tables.finding import DRAFTER_CONFIG, read_drafter_json
    from tokalign.tokenizer.files import holds_tokenizer

    if not os.path.isfile(folder / DRAFTER_CONFIG) or holds_tokenizer(folder):
        return None
    config = read_drafter_json(folder)
    kind = drafter_format(config)
    if kind is None:
        return None
    found = {"path": str(folder), "drafter": str(kind), "config": config}
    return {**found, "target": trained_for(folder, kind)}


def _describe_tokenizer(name: str, *, trust_remote_code: bool) -> dict[str, Any]:
    from tokalign.names.published_drafters import published_for
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.tokenizer.spec import Level
    from tokalign.tokenizer.vocabulary import TargetId

    found: Resolved[TargetId] = resolve_tokenizer(name, trust_remote_code=trust_remote_code)
    tokenizer = found.tokenizer
    facts: dict[str, Any] = {
        "tokenizer": found.description,
        "level": str(tokenizer.level),
        "why": tokenizer.spec.why or None,
        "fingerprint": tokenizer.fingerprint,
        "vocabulary_size": len(tokenizer.vocabulary),
        "special_tokens": len(tokenizer.vocabulary.specials),
    }
    if tokenizer.level is not Level.IDS_ONLY:
        facts["added_tokens_in_text"] = len(tokenizer.encoder.added)
        facts["bytes_that_no_token_spells"] = len(tokenizer.encoder.missing)
    if published := published_for(name):
        facts["published_drafter"] = str(published)
    return facts
