"""`tokalign push`: put tables into a repository, beside a model or by themselves."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.arguments import as_path
from tokalign.cli.option_types import NAME, PATH
from tokalign.cli.output import echo, json_option, note, print_json, quiet_option


@click.command("push")
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@click.argument("repository", type=NAME, metavar="REPO")
@click.option(
    "--folder",
    metavar="NAME",
    default="tokalign",
    help="Folder at the top level of REPO; one per model where REPO has tables of several.",
)
@json_option
@quiet_option
def command(
    *, files: tuple[Path, ...], repository: str, folder: str, as_json: bool, quiet: bool
) -> None:
    """Verify the tables in FILEs and put them into REPO, where `tokalign pull REPO` finds them.

    A FILE may be the folder of a drafter, too; in REPO it is called `drafter`, or NAME.drafter.

    REPO is a repository on the Hub that you may write to (owner/name), or a local folder such as a
    model's. A section for the README of REPO goes to stdout.
    """
    from tokalign.names.hub import hide_progress
    from tokalign.tables.model_card import model_card
    from tokalign.tables.travelling import push_tables

    if quiet:
        hide_progress()
    name, tables = push_tables(files, repository, folder=folder)
    for table in tables:
        note(f"{table.name} -> {name}/{table.path}", quiet=quiet)
    card = model_card(tables, "OWNER/NAME" if as_path(name).is_dir() else name)
    if as_json:
        described = [table.described() for table in tables]
        print_json({"repository": name, "files": described, "model_card": card})
    else:
        echo(card, nl=False)
