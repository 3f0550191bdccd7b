"""`tokalign replay`: measure how much of a draft model's proposals reference texts accept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.atomic_file import require_writable
from tokalign.cli.drafting_options import (
    alignment_option,
    alternatives_option,
    dtype_option,
    every_position_option,
    target_tokenizer_option,
    translation_option,
)
from tokalign.cli.idle_options import refuse_idle_drafting
from tokalign.cli.option_types import NAME
from tokalign.cli.output import json_option, note, print_figures, progress, quiet_option
from tokalign.cli.texts import field_option, limit_option, read_texts, text_option

if TYPE_CHECKING:
    from tokalign.runtime.draft.neural import NeuralDrafter
    from tokalign.tokenizer.vocabulary import TargetId

_KEYS = (
    "rounds",
    "accepted_per_round",
    "proposed_per_round",
    "tokens_per_round",
    "draft_acceptance_rate",
    "empty_rounds",
    "draft_passes_per_round",
)


@click.command("replay")
@target_tokenizer_option
@click.option(
    "--draft",
    "--draft-model",
    "draft",
    type=NAME,
    metavar="NAME",
    required=True,
    help="The draft model.",
)
@text_option
@field_option
@translation_option
@click.option(
    "--num-draft-tokens",
    type=click.IntRange(min=1),
    default=2,
    help="Passes of the draft model in a round.",
)
@alternatives_option
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    default=12,
    help="Target tokens of each text that are given as the prompt.",
)
@limit_option
@alignment_option
@dtype_option
@every_position_option
@json_option
@quiet_option
def command(
    *,
    draft: str,
    target: str,
    text_file: Path,
    field: str,
    translation: str | None,
    num_draft_tokens: int,
    alternatives: int,
    prompt_tokens: int,
    limit: int | None,
    alignment: Path | None,
    dtype: str | None,
    trace: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Let a draft model propose how reference texts continue, and count what the texts accept.

    The figures do not depend on the hardware, except for times.
    """
    from tokalign.assemble import choose_drafting, keep_loaded, load_models
    from tokalign.drafting_options import DraftingOptions
    from tokalign.evaluate.recorded_proposals import write_trace
    from tokalign.evaluate.replay import record_texts, replay_texts
    from tokalign.names.registry import Resolved, resolve_tokenizer
    from tokalign.runtime.decoder import Prompt, make_model_drafter
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.translation.base import Pair

    refuse_idle_drafting()
    if trace is not None:
        require_writable(trace)
    options = DraftingOptions(
        method="draft",
        translation=translation,
        num_draft_tokens=num_draft_tokens,
        alternatives=alternatives,
        alignment=alignment,
    )
    texts = read_texts(text_file, field=field, limit=limit)
    tell = partial(note, quiet=quiet)
    resolved: Resolved[TargetId] = resolve_tokenizer(target)
    tell(resolved.description)
    [model] = load_models([draft], dtype=dtype, note=tell)
    pair = Pair(resolved.tokenizer, model.tokenizer)
    drafting = choose_drafting(pair.target, pair.draft, options, beside=resolved.folder, note=tell)
    session, encoded = DraftModelSession(model.model), pair.target.encode_batch(texts)
    keep_loaded()

    def drafter(ids: Sequence[TargetId]) -> NeuralDrafter:
        return make_model_drafter(drafting, pair, Prompt(target=ids[:prompt_tokens]), session)

    with progress(len(texts), "replaying", quiet=quiet) as advance:
        statistics = replay_texts(encoded, drafter, prompt_tokens=prompt_tokens, progress=advance)
    asked = {"translation": drafting.translation, "num_draft_tokens": num_draft_tokens}
    if trace is not None:
        with progress(len(texts), "recording", quiet=quiet) as advance:
            recorded = record_texts(
                {"draft": drafter}, encoded, asked, prompt_tokens=prompt_tokens, progress=advance
            )
        write_trace(recorded, trace)
    figures: dict[str, Any] = {key: getattr(statistics, key) for key in _KEYS} | {
        **asked,
        "alternatives": alternatives,
        "texts": len(texts),
        "host_ms_per_round": statistics.host_ms_per_round,
        "translation_ms_per_round": statistics.translation_ms_per_round,
        "translation_counts": dict(sorted(statistics.counts.items())),
    }
    print_figures(figures, as_json=as_json)
