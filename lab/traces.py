"""Traces in files, from which `project.py` says what drafts are worth under any curve.

    python -m lab.traces --text --target NAME --method NAME -k N --trace FILE.pickle TEXT...

records one, with the options of `tokalign bench --text`. The file is a pickle: read only your own.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import click

from lab.recorded_proposals import ProposalTrace, record
from tokalign.cli.bench import OPTIONS, read_options
from tokalign.cli.bench_texts import prepare
from tokalign.cli.command import Command, FilePath, Option
from tokalign.cli.output import progress
from tokalign.errors import UsageError
from tokalign.storage import require_writable


def read_trace(path: Path) -> ProposalTrace:
    """Raises: UsageError for anything that is no trace, and where no token follows a prompt."""
    try:
        trace = pickle.loads(path.read_bytes())
    except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        trace = error
    if not isinstance(trace, ProposalTrace) or not trace.tokens:
        raise UsageError(
            f"{path} is no trace with tokens after a prompt; record one with: "
            "python -m lab.traces --trace FILE.pickle"
        )
    return trace


@click.command(
    "traces",
    cls=Command,
    params=[
        *[option for option in OPTIONS if option.name not in ("html", "publish")],
        Option("--trace", "The file.", FilePath(".pickle"), required=True),
    ],
)
def command(*, trace: Path, **given: Any) -> None:
    """Record what every condition proposes at every position of FILEs."""
    options = read_options(given | {"publish": None, "lengths": given["lengths"] or [2, 4]})
    require_writable(trace)
    makers, encoded = prepare(options)
    longest = max(length for length in options.lengths if isinstance(length, int))
    asked = {one.name: make for one, make in makers.items() if one.k == longest}
    texts = []
    with progress(len(encoded), "recording") as advance:
        for ids in encoded:
            drafters = {name: make(ids) for name, make in asked.items()}
            texts.append(record(ids, drafters, prompt_tokens=options.prompt_tokens))
            advance(1)
    trace.write_bytes(pickle.dumps(ProposalTrace(texts=tuple(texts))))


if __name__ == "__main__":
    command()
