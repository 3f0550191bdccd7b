"""`tokalign learn`: a private dictionary of the user's own documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.command import AT_LEAST_1, FOLDER, MODEL_NAME, Command, Option, flag, several
from tokalign.cli.options import TRUST
from tokalign.cli.output import flags, note, note_problems, progress, show
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.learning import Collection


_OPTIONS = (
    Option("--name", "What the collection and its dictionary are called.", metavar="NAME"),
    several("--target targets", "Its tokenizer is enough; repeatable. Remembered.", MODEL_NAME),
    several(
        "--exclude",
        "Leave out as a line of .gitignore would; repeatable. Remembered.",
        metavar="PATTERN",
    ),
    Option(
        "--dictionary-bytes max_bytes", "Largest size. Default: 5000000. Remembered.", AT_LEAST_1
    ),
    TRUST,
    flag("--list lists", "Show what was learned, and learn nothing."),
    click.Argument(["folders"], metavar="[FOLDER]...", nargs=-1, type=FOLDER),
)


@click.command("learn", cls=Command, params=[*_OPTIONS])
def command(*, name: str | None, lists: bool, exclude: tuple[str, ...], **values: Any) -> None:
    """Learn how the documents in FOLDERs are worded, for the targets named.

    Reads text, Markdown, HTML and PDF; leaves out what is hidden, named like a secret or kept by
    programs, and follows no links. The dictionary is used beside those of languages from then on.
    Run it again when documents are new, changed or gone; without FOLDERs those of the last time are
    read. The dictionary stays in your data folder, where only you can read it; `tokalign tables
    forget NAME` deletes it.
    """
    if lists:
        _show_all()
        return
    if name is None:
        raise UsageError("what is learned needs a name; give --name NAME, such as notes")
    from tokalign.build.learning import learn

    learned = learn(name, exclude=exclude or None, **values, stage=progress)
    problems = [*learned.problems]
    problems += [f"{path}: it cannot be read" for path in learned.skipped.unreadable]
    note_problems(problems, "documents cannot be read")
    tables = [
        {"path": str(path), "bytes": path.stat().st_size, "built": built}
        for path, built in learned.tables.items()
    ]
    unread = {"problems": learned.problems, "unreadable": learned.skipped.unreadable}
    show(
        {
            "documents_read": learned.read,
            "documents_unchanged": learned.unchanged,
            "documents_with_text": learned.texts,
            "copies": learned.copies,
            **{name: value if flags.as_json else len(value) for name, value in unread.items()},
            "left_out": dict(learned.skipped.counts),
            "tables": tables,
        }
    )


def _show_all() -> None:
    from tokalign.build.learning import collections

    learned = [_described(collection) for collection in collections()]
    if learned or flags.as_json:
        show({"learned": learned})
    else:
        note("nothing was learned yet; begin with: tokalign learn FOLDER --name NAME --target NAME")


def _described(collection: Collection) -> dict[str, Any]:
    settings = collection.settings()
    return {
        "name": collection.name,
        "folders": list(settings.folders),
        "targets": list(settings.targets),
        "tables": [str(path) for path in collection.tables],
        "bytes": sum(path.stat().st_size for path in collection.tables),
    }
