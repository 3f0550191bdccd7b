"""`tokalign learn`: a private dictionary of the user's own documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.command import AT_LEAST_1, FOLDER, NAME, Command, Option, Size
from tokalign.cli.output import asked, echo, note, print_json, progress, show, table
from tokalign.errors import UsageError

if TYPE_CHECKING:
    from tokalign.build.documents.learning import Collection, Learned

_SHOWN_PROBLEMS = 10


_OPTIONS = (
    Option(
        "--name",
        "What the collection and its dictionary are called.",
        metavar="NAME",
        excludes="--list",
    ),
    Option(
        "--target targets",
        "The target, or its tokenizer alone; repeatable. Remembered.",
        type=NAME,
        multiple=True,
        excludes="--list",
    ),
    Option(
        "--exclude",
        "Leave out what a line of a .gitignore file would, in any case; repeatable. Remembered.",
        metavar="PATTERN",
        multiple=True,
        excludes="--list",
    ),
    Option(
        "--largest-file",
        "Leave out larger files. Default: 50M. Remembered.",
        type=Size(),
        excludes="--list",
    ),
    Option(
        "--dictionary-bytes",
        "The largest size of each dictionary. Default: 5000000. Remembered.",
        type=AT_LEAST_1,
        excludes="--list",
    ),
    Option(
        "--list lists", "Show what was learned, and learn nothing.", is_flag=True, excludes="FOLDER"
    ),
    click.Argument(["folders"], metavar="[FOLDER]...", nargs=-1, type=FOLDER),
)


@click.command("learn", cls=Command, params=[*_OPTIONS])
def command(
    *,
    name: str | None,
    targets: tuple[str, ...],
    exclude: tuple[str, ...],
    largest_file: int | None,
    dictionary_bytes: int | None,
    lists: bool,
    folders: tuple[Path, ...],
) -> None:
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
    from tokalign.build.documents.learning import learn

    learned = learn(
        name,
        folders=folders,
        targets=targets,
        exclude=exclude or None,
        largest_file=largest_file,
        max_bytes=dictionary_bytes,
        stage=lambda total, label: progress(total, label, in_bytes=label == "Reading documents"),
    )
    _tell_problems(learned)
    show(_as_json(learned), lambda: _as_text(learned))


def _tell_problems(learned: Learned) -> None:
    """The documents that could not be read: the first ten one by one, the rest as a number."""
    problems = [*learned.problems]
    problems += [f"{path}: it cannot be read" for path in learned.skipped.unreadable]
    for problem in problems[:_SHOWN_PROBLEMS]:
        note(problem)
    if len(problems) > _SHOWN_PROBLEMS:
        note(f"{len(problems) - _SHOWN_PROBLEMS} more documents cannot be read")


def _as_json(learned: Learned) -> dict[str, Any]:
    return {
        "documents_read": learned.read,
        "documents_unchanged": learned.unchanged,
        "documents_with_text": learned.texts,
        "copies": learned.copies,
        "problems": learned.problems,
        "unreadable": learned.skipped.unreadable,
        "left_out": dict(learned.skipped.counts),
        "tables": [
            {"path": str(path), "bytes": path.stat().st_size, "built": built}
            for path, built in learned.tables.items()
        ],
    }


def _as_text(learned: Learned) -> str:
    rows: list[tuple[str, object]] = [
        ("read", learned.read),
        ("unchanged", learned.unchanged),
        ("copies of others", learned.copies),
        ("without readable text", learned.read - learned.texts - learned.copies),
    ]
    rows += [(f"left out: {why}", count) for why, count in sorted(learned.skipped.counts.items())]
    for path, built in learned.tables.items():
        rows.append(
            (str(path), f"{path.stat().st_size:,} bytes" + ("" if built else ", as it was"))
        )
    return table(rows)


def _show_all() -> None:
    from tokalign.build.documents.learning import collections

    found = [_described(collection) for collection in collections()]
    if asked.as_json:
        print_json({"learned": found})
        return
    if not found:
        note("nothing was learned yet; begin with: tokalign learn FOLDER --name NAME --target NAME")
    for number, one in enumerate(found):
        rows = [("name", one["name"])]
        rows += [("folder", folder) for folder in one["folders"]]
        rows += [("target", target) for target in one["targets"]]
        rows += [("dictionary", path) for path in one["tables"]]
        rows += [("bytes in all", f"{one['bytes']:,}")]
        echo("\n" * bool(number) + table(rows))


def _described(collection: Collection) -> dict[str, Any]:
    settings = collection.settings()
    return {
        "name": collection.name,
        "folders": list(settings.folders),
        "targets": list(settings.targets),
        "tables": [str(path) for path in collection.tables],
        "bytes": sum(path.stat().st_size for path in collection.folder.iterdir()),
    }
