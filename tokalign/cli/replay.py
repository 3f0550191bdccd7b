"""`tokalign replay`: how much of a draft model's guesses a reference text would accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.drafting_options import alternatives_option
from tokalign.cli.loading import keep_loaded, pair_tables
from tokalign.cli.output import json_option, note, print_json, progress, quiet_option, table
from tokalign.cli.texts import field_option, limit_option, read_texts, text_option
from tokalign.runtime.methods import (
    check_draft_tokens,
    check_translation,
    choose_translation,
)

if TYPE_CHECKING:
    from tokalign.runtime.statistics import Statistics
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
@click.option(
    "--draft-model", "--draft", "draft", metavar="NAME", required=True, help="The draft model."
)
@click.option("--target", metavar="NAME", required=True, help="The target's tokenizer.")
@text_option
@field_option
@click.option("--translation", metavar="NAME", help="none, naive, context:P, intersection, exact.")
@click.option(
    "--num-draft-tokens",
    type=int,
    default=2,
    show_default=True,
    help="Draft passes in a round.",
)
@alternatives_option
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Target tokens of each text that are given.",
)
@limit_option
@click.option("--alignment", metavar="FILE", type=click.Path(path_type=Path), help="The table.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Of weights.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also draft at every position, and record it for `tokalign project`.",
)
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
    """Have a draft model guess how reference texts go on; hardware plays no part in the figures."""
    check_draft_tokens(num_draft_tokens)

    if translation is not None:
        check_translation(translation)
    texts = read_texts(text_file, field=field, limit=limit)
    statistics, chosen = _replay(
        draft,
        target,
        texts,
        translation=translation,
        steps=num_draft_tokens,
        alternatives=alternatives,
        prompt_tokens=prompt_tokens,
        alignment=alignment,
        dtype=dtype,
        trace=trace,
        quiet=quiet,
    )
    figures: dict[str, Any] = {key: getattr(statistics, key) for key in _KEYS} | {
        "translation": chosen,
        "num_draft_tokens": num_draft_tokens,
        "alternatives": alternatives,
        "texts": len(texts),
        "host_ms_per_round": statistics.host_ms_per_round,
        "translation_ms_per_round": statistics.translation_ms_per_round,
        "translation_counts": dict(sorted(statistics.counts.items())),
    }
    if as_json:
        print_json(figures)
    else:
        click.echo(
            table((k, f"{v:.4f}" if isinstance(v, float) else v) for k, v in figures.items())
        )


def _replay(
    draft: str,
    target: str,
    texts: list[str],
    *,
    translation: str | None,
    steps: int,
    alternatives: int,
    prompt_tokens: int,
    alignment: Path | None,
    dtype: str | None,
    trace: Path | None,
    quiet: bool,
) -> tuple[Statistics, str]:
    """Replay every text; the statistics of all, and which translation it was."""
    from tokalign.evaluate.record import record
    from tokalign.evaluate.recorded_proposals import ProposalTrace, TracedText, write_trace
    from tokalign.evaluate.replay import replay
    from tokalign.runtime.decoder import LanguageModel, Prompt, make_translation
    from tokalign.runtime.draft.neural import NeuralDrafter
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.statistics import Statistics
    from tokalign.runtime.translation.base import Pair
    from tokalign.tokenizer.registry import resolve_model, resolve_tokenizer

    location, resolved = resolve_model(draft), resolve_tokenizer(target)
    note(location.description, quiet=quiet)
    note(resolved.description, quiet=quiet)
    model = LanguageModel.from_folder(location.folder, dtype=dtype)
    pair = Pair(resolved.tokenizer, model.tokenizer)
    chosen = choose_translation(translation, pair.target, pair.draft)
    tables = pair_tables(
        pair.target,
        pair.draft,
        beside=location.folder,
        file=alignment,
        note=lambda line: note(line, quiet=quiet),
    )
    session, statistics = DraftModelSession(model.model), Statistics()
    recorded: list[TracedText] = []
    keep_loaded()

    def drafter(ids: list[TargetId]) -> NeuralDrafter:
        prompt = Prompt(target=ids[:prompt_tokens])
        translation = make_translation(chosen, pair, prompt, tables)
        return NeuralDrafter(
            session, translation, num_draft_tokens=steps, alternatives=alternatives
        )

    with progress(len(texts), "replaying", quiet=quiet) as advance:
        for ids in pair.target.encode_batch(texts):
            for event in replay(ids, drafter(ids), prompt_tokens=prompt_tokens):
                statistics.observe(event)
            if trace is not None:
                asked = {"draft": drafter(ids)}
                recorded.append(record(ids, asked, prompt_tokens=prompt_tokens))
            advance(1)
    if trace is not None:
        notes = {"translation": chosen, "num_draft_tokens": steps, "texts": len(texts)}
        write_trace(ProposalTrace(texts=tuple(recorded), every_position=True, notes=notes), trace)
    return statistics, chosen
