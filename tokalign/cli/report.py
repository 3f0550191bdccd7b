"""`tokalign report`: an HTML page that shows where each token of a run came from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tokalign.atomic_file import write_file
from tokalign.cli.option_types import PATH
from tokalign.cli.output import json_option, note, print_json, quiet_option
from tokalign.errors import UsageError
from tokalign.json_text import parse_json


@click.command("report")
@click.argument("file", metavar="FILE.html", type=PATH)
@click.option(
    "--run",
    metavar="RUN.json",
    default="-",
    help="What `tokalign decode --json` printed; - reads it from stdin.",
)
@click.option("--title", default="How this text was decoded", help="The title of the page.")
@json_option
@quiet_option
def command(*, file: Path, run: str, title: str, as_json: bool, quiet: bool) -> None:
    """Show a run as one self-contained page: accepted, corrected, bonus and undrafted tokens.

    tokalign decode --target T --draft D -p "..." --json | tokalign report FILE.html
    """
    from tokalign.report.run import run_page
    from tokalign.runtime.rounds import SavedRun

    saved = SavedRun.from_json(_read(run), name="stdin" if run == "-" else run)
    write_file(file, run_page(saved, title=title))
    if as_json:
        print_json({"file": str(file), "rounds": len(saved.rounds)})
    else:
        note(f"{file}: {len(saved.rounds):,} rounds", quiet=quiet)


def _read(run: str) -> Any:
    """Read the JSON in a file, or on stdin. Raises: UsageError."""
    name = "stdin" if run == "-" else run
    try:
        return parse_json(sys.stdin.read() if run == "-" else Path(run).read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read ({error.strerror}); give --run RUN.json"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{name} is not JSON ({error}); save a run with: tokalign decode ... --json > RUN.json"
        ) from error
