"""`tokalign verify`: check table files byte for byte."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.cli.option_types import PATH
from tokalign.cli.output import always_quiet_option, echo, json_option, note, print_json
from tokalign.cli.streams import one_line
from tokalign.errors import TokalignError


@click.command("verify")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@json_option
@always_quiet_option
def command(*, files: tuple[Path, ...], as_json: bool) -> None:
    """Check every byte of FILES against their checksums, and that their tables can be read.

    All files are checked; the exit code is 3 if one of them is damaged, 4 if one is missing.
    """
    problems = {path: _check(path) for path in files}
    if as_json:
        found = [
            {"path": str(path), "ok": problem is None, "problem": problem and str(problem)}
            for path, problem in problems.items()
        ]
        print_json({"ok": not any(problems.values()), "files": found})
    else:
        for path, problem in problems.items():
            if problem is None:
                echo(one_line(f"{path}: ok"))
            else:
                note(f"tokalign: {problem}")
    if codes := [problem.exit_code for problem in problems.values() if problem]:
        raise click.exceptions.Exit(max(codes))


def _check(path: Path) -> TokalignError | None:
    """The error in a table file; None if it has none."""
    from tokalign.tables.opening import verify_table

    try:
        verify_table(path)
    except TokalignError as error:
        return error
    return None
