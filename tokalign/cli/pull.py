"""`tokalign pull`: fetch the tables of a model, or of a repository of tables."""

from __future__ import annotations

from functools import partial

import click

from tokalign.cli.option_types import NAME
from tokalign.cli.output import echo, json_option, note, print_json, quiet_option


@click.command("pull")
@click.argument("name", type=NAME)
@json_option
@quiet_option
def command(*, name: str, as_json: bool, quiet: bool) -> None:
    """Fetch the tables of NAME into your table folder, where all commands and the API find them.

    NAME is an alias, a repository on the Hub, of a model or of tables alone, or a local folder.
    Every byte is verified first; of a damaged or half download nothing is kept. A model that was
    downloaded before tables were added to its repository gets them this way.
    """
    from tokalign.names.hub import hide_progress
    from tokalign.tables.travelling import pull_tables

    if quiet:
        hide_progress()
    paths = pull_tables(name, note=partial(note, quiet=quiet))
    if as_json:
        print_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            echo(str(path))
