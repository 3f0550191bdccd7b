"""Traces in files: JSON lines, from which `project.py` says what drafts are worth under any curve.

Format: the first line is {"format", "version"}. Each text has a line {"given", "length"}
(ids of its prompt, ids in all), followed by its proposals {"at", "by", "sources", "probabilities",
"offered", "path", "passes"}, with "parents" for a tree. `sources` is a single name if all
ids are from one source, `offered` counts the ids, `path` holds the indices of those that were
right.

    python -m lab.traces --text --target NAME --method NAME -k N --trace FILE.jsonl TEXT...

records one, with the options of `tokalign bench --text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from lab.recorded_proposals import WRONG, ProposalTrace, RecordedProposal, TracedText, record
from tokalign.arguments import finite_number, parents_of, parse_json, text_of, whole_number
from tokalign.atomic_file import require_writable, write_file
from tokalign.cli.bench_options import OPTIONS, Options
from tokalign.cli.bench_texts import prepare
from tokalign.cli.command import Command, FilePath, Option
from tokalign.cli.output import progress
from tokalign.errors import UsageError
from tokalign.tables.token_tree import TokenTree

FORMAT, VERSION = "tokalign-trace", 1

_MOST_OFFERED = 10_000
"""More ids than any drafter proposes at once."""


def lines_of(trace: ProposalTrace) -> Iterator[str]:
    """A trace as JSON lines."""
    about = {"format": FORMAT, "version": VERSION}
    yield json.dumps(about, ensure_ascii=False)
    for text in trace.texts:
        yield json.dumps({"given": text.given, "length": text.length})
        for drafter, recorded in text.proposals.items():
            for at, one in sorted(recorded.items()):
                yield json.dumps({"at": at, "by": drafter, **_to_json(one)})


def from_lines(lines: Iterable[str], *, name: str) -> ProposalTrace:
    """Raises: UsageError, with `name`, for anything that is not a trace of this version."""
    number, texts = 0, list[TracedText]()
    try:
        header: dict[str, Any] = {}
        for number, line in enumerate(lines, 1):
            saved = parse_json(line)
            if number == 1:
                header = saved
                if (header["format"], header["version"]) != (FORMAT, VERSION):
                    raise ValueError(f"it is of {header['format']} version {header['version']}")
            elif "given" in saved:
                length = whole_number(saved["length"])
                given = whole_number(saved["given"], most=length)
                texts.append(TracedText(given=given, length=length))
            else:
                recorded = texts[-1].proposals.setdefault(text_of(saved["by"]), {})
                recorded[whole_number(saved["at"])] = _from_json(saved)
        return ProposalTrace(texts=tuple(texts))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(
            f"{name}:{number}: not a trace of version {VERSION} ({type(error).__name__}: "
            f"{error}); record one with: python -m lab.traces --trace FILE.jsonl"
        ) from error


def read_trace(path: Path) -> ProposalTrace:
    """Raises: UsageError for anything that is no trace, and where no token follows a prompt."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}); record a trace with: "
            "python -m lab.traces --trace FILE.jsonl"
        ) from error
    trace = from_lines(text.splitlines(), name=str(path))
    if not trace.tokens:
        raise UsageError(
            f"{path} holds no token after a prompt, so nothing can be said of it; record a longer "
            "text with: python -m lab.traces --trace FILE.jsonl"
        )
    return trace


def write_trace(trace: ProposalTrace, path: Path) -> None:
    """Write a trace, whole or not at all. Raises: UsageError."""
    write_file(path, "".join(line + "\n" for line in lines_of(trace)))


def _to_json(one: RecordedProposal) -> dict[str, Any]:
    tree = one.tree
    saved: dict[str, Any] = {
        "sources": tree.sources[0] if len(set(tree.sources)) == 1 else tree.sources,
        "probabilities": [round(p, 4) for p in tree.probabilities],
        "offered": len(tree),
        "path": one.path,
        "passes": one.passes,
    }
    return saved | ({} if tree.chain_length == len(tree) else {"parents": tree.parents})


def _from_json(saved: Mapping[str, Any]) -> RecordedProposal:
    sources, count = saved["sources"], whole_number(saved["offered"], most=_MOST_OFFERED)
    tree = TokenTree(
        (WRONG,) * count,
        parents_of(saved.get("parents") or range(-1, count - 1)),
        (sources,) * count if isinstance(sources, str) else tuple(map(text_of, sources)),
        tuple(map(finite_number, saved["probabilities"])),
    )
    return RecordedProposal.of(
        tree,
        [whole_number(index) for index in saved["path"]],
        passes=whole_number(saved["passes"], most=_MOST_OFFERED),
    )


@click.command(
    "traces",
    cls=Command,
    params=[*OPTIONS, Option("--trace", "The file.", type=FilePath(".jsonl"), required=True)],
)
def command(*, trace: Path, **given: Any) -> None:
    """Record what every condition proposes at every position of FILEs."""
    options = Options(**given)
    require_writable(trace)
    makers, encoded, prompt_tokens = prepare(options)
    longest = max(length for length in options.lengths if isinstance(length, int))
    asked = {one.name: make for one, make in makers.items() if one.k == longest}
    texts = []
    with progress(len(encoded), "recording", quiet=options.quiet) as advance:
        for ids in encoded:
            drafters = {name: make(ids) for name, make in asked.items()}
            texts.append(record(ids, drafters, prompt_tokens=prompt_tokens))
            advance(1)
    write_trace(ProposalTrace(texts=tuple(texts)), trace)


if __name__ == "__main__":
    command()
