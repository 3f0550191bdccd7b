"""`tokalign sweep`: build dictionaries of many kinds and sizes, and measure what each saves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path

import click

from tokalign.atomic_file import require_writable, write_file
from tokalign.cli.drafting_options import target_tokenizer_option
from tokalign.cli.idle_options import refuse_idle
from tokalign.cli.option_types import PATH, Numbers
from tokalign.cli.output import echo, json_option, note, print_json, progress, quiet_option
from tokalign.cli.texts import field_option, limit_option, read_texts
from tokalign.errors import UsageError
from tokalign.evaluate.sweep import LONGEST, SweepFile, SweepResult, sweep, variants

_SHOWN = ("kind", "order", "size", "p_min", "entries", "bytes", "text", "speedup", "rows_per_step")


@click.command("sweep")
@target_tokenizer_option
@click.option(
    "--corpus",
    "corpus_files",
    type=PATH,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Text to count; repeatable.",
)
@click.option(
    "--text",
    "text_files",
    type=PATH,
    multiple=True,
    required=True,
    metavar="FILE",
    help="Reference texts to measure on; repeatable.",
)
@click.option("--kind", default="backoff,dictspec", help="Kinds of dictionary: one or both.")
@click.option(
    "--order",
    "orders",
    type=Numbers(int, 1),
    default="1,2,3",
    help="backoff: ids of the longest context. dictspec: words of the longest n-gram.",
)
@click.option(
    "--dictionary-bytes",
    "sizes",
    type=Numbers(int, 1),
    default="1_000_000,2_500_000,5_000_000",
    help="backoff: the largest sizes of the file.",
)
@click.option(
    "--ngrams",
    type=Numbers(int, 1),
    default="50_000,200_000",
    help="dictspec: how many n-grams to use.",
)
@click.option(
    "--p-min",
    "p_mins",
    type=Numbers(float, 0.0),
    default="0.1,0.2",
    help="The least probabilities of a proposal.",
)
@click.option(
    "--max-draft", type=click.IntRange(min=1), default=8, help="Tokens proposed in a step at most."
)
@field_option
@limit_option
@click.option(
    "--results",
    type=PATH,
    required=True,
    metavar="FILE",
    help="A CSV file of what was measured; a killed sweep resumes from it.",
)
@click.option("--plot", type=PATH, metavar="FILE", help="Also draw the results, as an HTML page.")
@json_option
@quiet_option
def command(
    *,
    target: str,
    corpus_files: tuple[Path, ...],
    text_files: tuple[Path, ...],
    kind: str,
    orders: tuple[int, ...],
    sizes: tuple[int, ...],
    ngrams: tuple[int, ...],
    p_mins: tuple[float, ...],
    max_draft: int,
    field: str,
    limit: int | None,
    results: Path,
    plot: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build a dictionary for every combination and emulate it on every text.

    The corpus is counted once for each kind. Results are written as soon as a table is measured;
    run the same command again to resume a sweep that was stopped.
    """
    sizes_by_kind = _sizes_by_kind(kind, sizes, ngrams)
    for name, of_kind in (("sizes", "backoff"), ("ngrams", "dictspec")):
        if of_kind not in sizes_by_kind:
            refuse_idle((name,), beside=f"--kind {kind}")
    if too_long := [order for order in orders if all(order > LONGEST[k] for k in sizes_by_kind)]:
        known = ", ".join(f"{LONGEST[kind]} of {kind}" for kind in sizes_by_kind)
        raise UsageError(f"--order {too_long[0]} is more than any kind has; the most are {known}")
    if plot is not None:
        from tokalign.report.charts import require_charts

        require_charts()
        require_writable(plot)
    wanted = variants(sizes_by_kind, orders, p_mins)
    from tokalign.build.corpus import Corpus
    from tokalign.evaluate.variants import VariantBuilder, emulate_table
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.tokenizer.vocabulary import TargetId

    resolved: Resolved[TargetId] = resolve_tokenizer(target)
    note(resolved.description, quiet=quiet)
    texts = {path.name: read_texts(path, field=field, limit=limit) for path in text_files}
    settings = resolved.tokenizer.fingerprint, max_draft, field, limit
    file = SweepFile(results, _basis(*settings, files=(*corpus_files, *text_files)), len(texts))
    found = file.open()
    missing = sorted(set(wanted) - {result.variant for result in found})
    note(f"{len(wanted) - len(missing)} of {len(wanted)} tables are done", quiet=quiet)
    builder = VariantBuilder(
        resolved.tokenizer,
        Corpus(corpus_files),
        workspace=results.with_suffix(".counts"),
        stage=partial(progress, quiet=quiet),
    )
    encoded = {name: resolved.tokenizer.encode_batch(lines) for name, lines in texts.items()}
    measure = partial(emulate_table, texts=encoded, max_draft=max_draft)
    swept = sweep(missing, file, build=builder.build, measure=measure)
    with progress(len(missing), "sweeping", quiet=quiet) as advance:
        for of_table in swept:
            found += of_table
            advance(1)
    if plot is not None:
        from tokalign.report.sweep import sweep_page

        write_file(plot, sweep_page(found))
        note(f"plot -> {plot}", quiet=quiet)
    if as_json:
        print_json({"results": [asdict(result) for result in found]})
    else:
        echo(_as_text(found))


def _sizes_by_kind(
    kinds: str, sizes: tuple[int, ...], ngrams: tuple[int, ...]
) -> Mapping[str, tuple[int, ...]]:
    known = {"backoff": sizes, "dictspec": ngrams}
    asked = [kind.strip() for kind in kinds.split(",")]
    if unknown := [kind for kind in asked if kind not in LONGEST]:
        raise UsageError(f"there is no kind {unknown[0]!r}; choose from {', '.join(LONGEST)}")
    return {kind: known[kind] for kind in asked}


def _basis(*parts: object, files: Iterable[Path]) -> str:
    """Twelve digits of everything that the results depend on besides the variant."""
    digest = sha256(json.dumps(parts).encode())
    for path in sorted(files, key=lambda path: path.name):
        digest.update(path.name.encode())
        if path.is_file():
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    return digest.hexdigest()[:12]


def _as_text(results: list[SweepResult]) -> str:
    """A table, the best on each text first."""
    from tokalign.report.tables import aligned

    ranked = sorted(results, key=lambda result: (result.text, -result.speedup))
    rows = [_SHOWN, *(tuple(_shown(getattr(one, key)) for key in _SHOWN) for one in ranked)]
    return aligned(rows, text_columns=len(_SHOWN)).removesuffix("\n")


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
