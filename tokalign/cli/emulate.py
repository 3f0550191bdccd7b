"""`tokalign emulate`: what drafting without a model saves on a text."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.cli.drafting_options import order_option
from tokalign.cli.output import json_option, note, print_json, progress, quiet_option, table
from tokalign.cli.texts import field_option, limit_option, read_texts, text_option
from tokalign.runtime.methods import (
    LOOKUP_METHODS,
    TABLE_METHODS,
    choose_method,
    read_order,
)


@click.command("emulate")
@click.option(
    "--method", type=click.Choice(LOOKUP_METHODS), default="dictionary", show_default=True
)
@click.option(
    "--dictionary",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A .dictionary.tok file; by default one is looked for.",
)
@click.option("--language", metavar="CODE", help="Of the dictionary, where several fit.")
@order_option
@click.option("--target", metavar="NAME", required=True, help="The target's tokenizer.")
@text_option
@field_option
@click.option(
    "--max-draft",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Most tokens proposed in a step.",
)
@click.option(
    "--row-cost",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Of each verified row beyond the first, in passes: what copy and hybrid weigh gain by.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Target tokens of each text that are given.",
)
@limit_option
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also ask at every position, and record it for `tokalign project`.",
)
@json_option
@quiet_option
def command(
    *,
    method: str,
    file: Path | None,
    language: str | None,
    order: str,
    target: str,
    text_file: Path,
    field: str,
    max_draft: int,
    row_cost: float,
    prompt_tokens: int,
    limit: int | None,
    trace: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Play reference texts as the target's output (DictSpec's emulator, for every source).

    A step is one pass of the target. speedup counts tokens per step, as if verifying cost nothing;
    speedup = 1 + coverage x mean_accepted_length, exactly.
    """
    from tokalign.cost.expected_gain import Costs
    from tokalign.evaluate.emulate import emulate, figures, trace_of
    from tokalign.evaluate.recorded_proposals import write_trace
    from tokalign.runtime.drafting import Drafting
    from tokalign.tables.opening import open_dictionary
    from tokalign.tokenizer.registry import resolve_tokenizer

    resolved = resolve_tokenizer(target)
    note(resolved.description, quiet=quiet)
    dictionary = None
    if method in TABLE_METHODS:
        dictionary = open_dictionary(
            resolved.tokenizer,
            file=file,
            language=language,
            note=lambda line: note(line, quiet=quiet),
        )
    costs = Costs(rows=(1.0, 1.0 + row_cost))
    drafting = Drafting(
        method=choose_method(method, draft=False, dictionary=dictionary is not None),
        num_draft_tokens=max_draft,
        order=read_order(order),
        dictionary=dictionary,
        costs=lambda: costs,
    )
    texts = read_texts(text_file, field=field, limit=limit)
    encoded = resolved.tokenizer.encode_batch(texts)
    with progress(len(texts), "emulating", quiet=quiet) as advance:
        statistics = emulate(drafting, encoded, prompt_tokens=prompt_tokens, progress=advance)
    if trace is not None:
        write_trace(trace_of(drafting, encoded, prompt_tokens=prompt_tokens), trace)
    found = figures(statistics)
    if as_json:
        print_json(found)
    else:
        click.echo(table((k, f"{v:.4f}" if isinstance(v, float) else v) for k, v in found.items()))
