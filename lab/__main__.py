"""`python -m lab`: the commands of the laboratory."""

from __future__ import annotations

import sys

import click

from lab.study.command import command as study
from tokalign.errors import TokalignError


@click.group()
def group() -> None:
    """Experiments of the papers; `python -m lab.benchmarks.NAME` runs a benchmark."""


group.add_command(study)

if __name__ == "__main__":
    try:
        group()
    except TokalignError as error:
        sys.exit(f"lab: {error}")
