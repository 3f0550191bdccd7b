"""`tokalign emulate`: what a dictionary saves on a text, without any model."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.cli.output import json_option, note, print_json, progress, quiet_option, table
from tokalign.cli.texts import field_option, limit_option, read_texts, text_option


@click.command("emulate")
@click.option(
    "--dictionary",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="A .dictionary.tok file.",
)
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
@limit_option
@json_option
@quiet_option
def command(
    *,
    file: Path,
    target: str,
    text_file: Path,
    field: str,
    max_draft: int,
    limit: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Play reference texts as the target's output against a dictionary (DictSpec's emulator).

    A step is one pass of the target. speedup counts tokens per step, as if verifying cost nothing;
    speedup = 1 + coverage x mean_accepted_length, exactly.
    """
    from tokalign.lookup import open_dictionary
    from tokalign.registry import resolve_tokenizer
    from tokalign.runtime.draft.dictionary import DictionaryDrafter
    from tokalign.runtime.replay import replay
    from tokalign.runtime.statistics import Statistics

    resolved = resolve_tokenizer(target)
    note(resolved.description, quiet=quiet)
    dictionary = open_dictionary(resolved.tokenizer, file=file)
    assert dictionary is not None
    texts = read_texts(text_file, field=field, limit=limit)
    drafter, statistics = DictionaryDrafter(dictionary, max_tokens=max_draft), Statistics()
    with progress(len(texts), "emulating", quiet=quiet) as advance:
        for ids in resolved.tokenizer.encode_batch(texts):
            for event in replay(ids, drafter):
                statistics.observe(event)
            advance(1)
    figures = {
        "speedup": statistics.tokens_per_round,
        "coverage": statistics.coverage,
        "mean_accepted_length": statistics.mean_accepted_length,
        "draft_acceptance_rate": statistics.draft_acceptance_rate,
        "tokens": statistics.generation_tokens,
        "steps": statistics.rounds,
    }
    if as_json:
        print_json(figures)
    else:
        click.echo(
            table((k, f"{v:.4f}" if isinstance(v, float) else v) for k, v in figures.items())
        )
