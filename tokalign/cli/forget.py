"""`tokalign forget`: delete what was learned from documents."""

from __future__ import annotations

import click

from tokalign.cli.output import always_quiet_option, echo, json_option, print_json


@click.command("forget")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
@always_quiet_option
def command(*, names: tuple[str, ...], as_json: bool) -> None:
    """Delete everything that `tokalign learn` keeps under each NAME: texts and dictionaries.

    The documents themselves are not touched.
    """
    from tokalign.build.documents.collection import Collection
    from tokalign.build.documents.learning import check_name

    collections = [Collection(check_name(name)) for name in dict.fromkeys(names)]
    for collection in collections:
        collection.require()  # all of them, before one is deleted
    for collection in collections:
        collection.forget()
    if as_json:
        print_json({"forgotten": [str(collection.folder) for collection in collections]})
    else:
        echo("\n".join(f"{collection.folder} is deleted" for collection in collections))
