"""`tokalign build`: tables from two tokenizers and a corpus (recipes: `build_plan.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tokalign.cli.command import (
    AT_LEAST_1,
    FILE,
    FOLDER,
    FROM_0,
    MODEL_NAME,
    NAME,
    POSITIVE,
    SIZE,
    Command,
    Option,
    flag,
    rare,
)
from tokalign.cli.options import FIELD, TRUST
from tokalign.cli.output import note, progress, show, skipping_lines
from tokalign.errors import UsageError
from tokalign.runtime.options import take
from tokalign.storage import POLISH
from tokalign.train.options import MOST_SEED, Writing

_OPTIONS = (
    Option("--target", "The target, or its tokenizer alone. Only --pack needs none.", MODEL_NAME),
    Option("--draft", "The draft, or its tokenizer alone.", MODEL_NAME),
    Option("--language", "The language of the FILEs, which names the table.", NAME, metavar="CODE"),
    Option("--output", "Where tables go. Default: $TOKALIGN_TABLES or your data folder.", FOLDER),
    flag("--dictionary-only", "Only the dictionary; needs no --draft."),
    flag("--alignment-only", "Only the alignment of the pair."),
    flag(
        "--from-model",
        "Keep TARGET's top-k logits on the FILEs. With --dictionary-only: count what it writes.",
    ),
    flag("--prompts", "TARGET answers the texts of the FILEs, else it continues pieces of them."),
    rare("--temp temperature", "The temperature of what TARGET writes.", POSITIVE, 0.7),
    rare("--seed", "The seed of what TARGET writes.", click.IntRange(0, MOST_SEED), 0),
    flag("--pack", "Count the FILEs for every tokenizer (docs/packs.md)."),
    Option(
        "--from-pack packs",
        "Make a dictionary from a .pack.tok file, without FILEs; repeatable.",
        FILE,
        multiple=True,
    ),
    Option("--positions tokens", "How many tokens the model reads or writes.", AT_LEAST_1, 100_000),
    Option(
        "--dictionary-bytes max_bytes",
        "Largest size of the dictionary or pack. Default: 5000000, of a pack 12000000.",
        AT_LEAST_1,
    ),
    Option("--memory", "Most memory for counting, of all processes together.", SIZE, "2G"),
    FIELD,
    TRUST,
    rare("--weight weights", "Count a file W times; repeatable.", metavar="NAME=W", multiple=True),
    rare(
        "--p-min",
        "Least probability of a proposal. Default: 0.05.",
        click.FloatRange(0, 1, min_open=True),
    ),
    rare("--workspace", "Finished counts of a build. Default: next to the table.", FOLDER),
    rare(
        "--on-invalid",
        "What to do with a line that cannot be read.",
        click.Choice(["skip", "refuse"]),
        "skip",
    ),
    rare(
        "--engine",
        "What counts: this machine, or datatrove on several (docs/scale.md).",
        click.Choice(["local", "datatrove"]),
        "local",
    ),
    rare("--tasks", "How many tasks share the FILEs. Default: the workers.", AT_LEAST_1),
    rare("--workers", "How many tasks run at once. Default: one per core.", AT_LEAST_1),
    rare("--local-tasks", "How many tasks this machine does. Default: the rest.", AT_LEAST_1),
    rare(
        "--local-rank-offset", "The first task of this machine; task 0 makes the table.", FROM_0, 0
    ),
    click.Argument(["files"], nargs=-1, type=NAME, metavar="[FILE]..."),
)


@click.command("build", cls=Command, params=[*_OPTIONS])
def command(
    *,
    draft: str | None,
    target: str | None,
    files: tuple[str, ...],
    language: str | None,
    output: Path | None,
    dictionary_only: bool,
    alignment_only: bool,
    from_model: bool,
    pack: bool,
    packs: tuple[Path, ...],
    engine: str,
    trust_remote_code: bool,
    field: str,
    weights: tuple[str, ...],
    on_invalid: str,
    **values: Any,
) -> None:
    """Build the dictionary of TARGET and the alignment of DRAFT with TARGET.

    Writes OUTPUT/<target>/<language>.dictionary.tok and OUTPUT/<target>/<draft>.alignment.tok, or
    with --from-model OUTPUT/<target>/<language>.logits.tok, with which decoding begins. Equal
    inputs give equal files. An interrupted build changes no table; the same command resumes it.

    FILEs are text: .txt or .jsonl, also .gz, .zst or .xz, or .parquet; a folder, a quoted glob, a
    URL such as hf://datasets/..., or - for lines on standard input. Without them, a small bundled
    Polish text is counted, whose dictionary replaces none of more text.
    """
    if target is None and not pack:
        raise UsageError("tables are built for a tokenizer; give --target NAME (or --pack)")
    if draft is None and not (dictionary_only or from_model or pack or packs):
        raise UsageError("an alignment needs a draft; give --draft NAME or --dictionary-only")
    writing, on_datatrove = take(Writing, values), engine == "datatrove"
    from tokalign.build.cluster import log_problem
    from tokalign.build.corpus import Corpus
    from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
    from tokalign.build.pack import PACK_BYTES
    from tokalign.build.pipeline import build_tables, require_outputs
    from tokalign.build.text_files import refuse
    from tokalign.cli.build_plan import BuildPlan, check_language, open_corpus
    from tokalign.tables.finding import same_dictionaries

    if pack and values["max_bytes"] is None:
        values["max_bytes"] = PACK_BYTES
    values = {name: value for name, value in values.items() if value is not None}
    options = take(BackoffOptions, values)
    reads = not (alignment_only or packs)
    counts_text = reads and not from_model  # else that of the prompts, which are not counted
    if reads:
        language = check_language(language, bundled=not files)
    plan = BuildPlan(
        target=target,
        language=language or POLISH,
        output=output,
        options=options,
        trust_remote_code=trust_remote_code,
    )
    if counts_text and not files and (table := plan.table_of_more()) is not None:
        stays = f"{table} stays, as it counts other text than the bundled; give FILEs to count them"
        if draft is None:
            raise UsageError(stays)
        note(stays)
        reads, counts_text, alignment_only = False, False, True
    if pack:
        builders = plan.pack()
    elif packs:
        builders = plan.compiled(packs)
    elif from_model:
        builders = plan.written(writing) if dictionary_only else plan.logits(writing.tokens)
    else:
        builders = plan.pair(draft, dictionary=not alignment_only)
    require_outputs(builders)
    if not reads and files:
        note("an alignment is made of two tokenizers alone; the FILEs are not read")
    with skipping_lines() as skip:
        report = refuse if on_invalid == "refuse" else log_problem if on_datatrove else skip
        corpus = Corpus([])
        if reads:
            corpus = open_corpus(
                files, report, field=field, weights=weights, on_datatrove=on_datatrove
            )
        if on_datatrove:
            [path] = builders
            built = plan.count_on_datatrove(path, corpus, **values)
        else:
            built = build_tables(corpus, builders, progress)
    for written in built.tables:
        if not written.entries and written.kind != "alignment":
            note(
                f"{written.path} has no entries, so it drafts nothing; give more text, or a "
                "larger --dictionary-bytes"
            )
        if written.previous is not None:
            note(f"the table that was there is kept as {written.previous}")
        _note_place(written.path, same_dictionaries(written.path))
    text = {
        "text_bytes": built.text_bytes,
        "lines_skipped": built.lines_skipped,
        "megabytes_per_second": round(built.text_bytes / built.seconds / 1e6, 3),
    }
    show(
        {
            "files": [str(written.path) for written in built.tables],
            **(text if counts_text else {}),
            "seconds": round(built.seconds, 3),
            "peak_memory_mb": round(built.peak_memory / 1e6, 1),
            "entries": sum(written.entries for written in built.tables),
            "tables": [
                {"path": str(t.path), "kind": t.kind, "bytes": t.bytes, "entries": t.entries}
                for t in built.tables
            ],
        }
    )


def _note_place(path: Path, same: Sequence[Path]) -> None:
    """Say which of the same dictionaries is used, if there are several and this is one of them."""
    from tokalign.tables.bundle import read_header

    first = same[0] if same else path
    if first.samefile(path):
        for hidden in same[1:2]:
            note(f"{path} is used from now on in place of {hidden}")
    elif any(path.samefile(other) for other in same):
        is_small = read_header(path).is_of_sample
        why = "; it counts a few pages: give FILEs with more text" if is_small else ""
        note(f"{path} is not used as long as there is {first}{why}")
