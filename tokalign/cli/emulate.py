"""`tokalign emulate`: measure drafting without a model on texts that play the target's output."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokalign.atomic_file import require_writable
from tokalign.cli.drafting_options import (
    dictionary_option,
    every_position_option,
    language_option,
    target_tokenizer_option,
)
from tokalign.cli.idle_options import refuse_idle, refuse_idle_drafting
from tokalign.cli.option_types import FiniteRange
from tokalign.cli.output import json_option, note, print_figures, progress, quiet_option
from tokalign.cli.texts import field_option, limit_option, read_texts, text_option
from tokalign.runtime.methods import LOOKUP_METHODS

if TYPE_CHECKING:
    from tokalign.runtime.interfaces import Drafter


@click.command("emulate")
@target_tokenizer_option
@text_option
@field_option
@click.option(
    "--method", type=click.Choice(LOOKUP_METHODS), default="dictionary", help="How to draft."
)
@dictionary_option
@language_option
@click.option(
    "--max-draft", type=click.IntRange(min=1), default=8, help="Tokens proposed in a step at most."
)
@click.option(
    "--row-cost",
    type=FiniteRange(min=0),
    default=0.0,
    help="Cost of each verified row beyond the first, in passes; copy and hybrid weigh it.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=0),
    default=0,
    help="Target tokens of each text that are given as the prompt.",
)
@limit_option
@every_position_option
@json_option
@quiet_option
def command(
    *,
    method: str,
    dictionary: tuple[Path, ...],
    language: tuple[str, ...],
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
    """Measure drafting on reference texts that play the target's output, as in DictSpec's emulator.

    A step is one pass of the target. The speedup is tokens per step, as if verifying rows cost
    nothing; it equals 1 + coverage x mean_accepted_length.
    """
    from tokalign.assemble import choose_drafting
    from tokalign.cost.expected_gain import Costs
    from tokalign.drafting_options import DraftingOptions
    from tokalign.evaluate.recorded_proposals import write_trace
    from tokalign.evaluate.replay import figures, record_texts, replay_texts
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.runtime.drafting import make_drafter
    from tokalign.tokenizer.vocabulary import TargetId

    refuse_idle_drafting()
    if method not in ("copy", "hybrid"):
        refuse_idle(("row_cost",), beside=f"--method {method}")
    if trace is not None:
        require_writable(trace)
    tell = partial(note, quiet=quiet)
    options = DraftingOptions(
        method=method,
        num_draft_tokens=max_draft,
        dictionary=dictionary,
        language=language,
    )
    resolved: Resolved[TargetId] = resolve_tokenizer(target)
    tell(resolved.description)
    drafting = choose_drafting(resolved.tokenizer, None, options, beside=resolved.folder, note=tell)
    costs = Costs(rows=(1.0, 1.0 + row_cost))
    drafting = replace(drafting, costs=lambda: costs)
    encoded = resolved.tokenizer.encode_batch(read_texts(text_file, field=field, limit=limit))

    def drafter(_: object) -> Drafter:
        return make_drafter(drafting, None)

    with progress(len(encoded), "emulating", quiet=quiet) as advance:
        statistics = replay_texts(encoded, drafter, prompt_tokens=prompt_tokens, progress=advance)
    if trace is not None:
        asked = {"method": method}
        recorded = record_texts({method: drafter}, encoded, asked, prompt_tokens=prompt_tokens)
        write_trace(recorded, trace)
    print_figures(figures(statistics), as_json=as_json)
