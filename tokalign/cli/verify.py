"""`tokalign verify`: check table files byte for byte."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.cli.output import always_quiet_option, json_option, print_json
from tokalign.errors import BundleError, TokalignError


@click.command("verify")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
@always_quiet_option
def command(*, files: tuple[Path, ...], as_json: bool) -> None:
    """Check every byte of FILES against their checksums, and that their tables can be read.

    All files are checked; the exit code is 3 if one of them is damaged, 4 if one is missing.
    """
    problems = {path: _check(path) for path in files}
    if as_json:
        print_json(
            {
                "ok": not any(problems.values()),
                "files": [
                    {"path": str(path), "ok": problem is None, "problem": problem and str(problem)}
                    for path, problem in problems.items()
                ],
            }
        )
    else:
        for path, problem in problems.items():
            click.echo(
                f"{path}: ok" if problem is None else f"tokalign: {problem}",
                err=problem is not None,
            )
    codes = [problem.exit_code for problem in problems.values() if problem is not None]
    if codes:
        raise click.exceptions.Exit(max(codes))


def _check(path: Path) -> TokalignError | None:
    """What is wrong with a table file, None if nothing is."""
    from tokalign.tables.alignment import Intersection, MergeSites
    from tokalign.tables.bundle import open_bundle
    from tokalign.tables.opening import read_dictionary

    try:
        bundle = open_bundle(path, verify=True)
        if bundle.kind == "dictionary":
            read_dictionary(bundle)
        elif bundle.kind == "alignment":
            Intersection.from_sections(bundle.sections)
            MergeSites.from_sections(bundle.sections)
        else:
            return BundleError(
                f"{path} is of the unknown kind {bundle.kind!r}; update tokalign or rebuild it "
                "with: tokalign build"
            )
    except TokalignError as error:
        return error
    except (KeyError, ValueError, RuntimeError) as error:  # a section missing, or no trie or array
        return BundleError(
            f"{path} is undamaged but its tables cannot be read ({error}); "
            "rebuild it with: tokalign build"
        )
    return None
