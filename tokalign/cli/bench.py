"""`tokalign bench`: every way to draft against plain decoding, on this machine or on texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import click

from tokalign import __version__
from tokalign.cli.bench_options import OPTIONS, Options, read_options
from tokalign.cli.command import Command
from tokalign.cli.output import markdown_table, note, progress, show
from tokalign.cli.texts import PromptText, language_of_model, read_prompts
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, METHODS, choose_method

if TYPE_CHECKING:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import Comparison, Measurement, Row
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.decoder import Decoder


@click.command("bench", cls=Command, params=[*OPTIONS])
def command(**given: Any) -> None:
    """Measure every way to draft against plain decoding, prompt by prompt.

    FILEs are prompts; without them, those that come with tokalign. Each
    output is compared with that of plain decoding, id by id (equal in float32). Plain decoding is
    measured twice: a condition is called faster only where it clears the second one, the control.
    With --text nothing but a draft model is run. A table goes to stdout, in Markdown.
    """
    options = read_options(given)
    if options.text:
        from tokalign.cli.bench_texts import show_texts

        show_texts(options)
        return
    from tokalign.evaluate.comparison import compare

    about, measurements = _measured(options)
    comparison = compare(measurements)
    show(
        as_object(comparison, about),
        lambda: markdown_table(HEAD, map(cells, comparison.overall)),
    )
    if comparison.ids_that_differ:
        note(
            f"{comparison.ids_that_differ} ids differ from plain decoding: in half precision the "
            "last bit may depend on the number of rows of a pass; --dtype float32 avoids that"
        )


def _measured(options: Options) -> tuple[Mapping[str, Any], Sequence[Measurement]]:
    """What was measured, and the measurements."""
    from tokalign.api.assemble import choose_dtype, keep_loaded, load_decoder

    plain = options.ignore_chat_template
    texts_in = partial(
        read_prompts,
        () if plain else options.files,
        options.files if plain else (),
        field=options.field,
        limit=options.limit,
    )
    language = next(iter(options.drafting.languages), None)
    # What cannot be read is said before models are loaded; their language is known afterwards.
    texts = texts_in(language=language) if options.files or language is not None else []
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.mlx.weights import device_name, mlx_version

    decoder = load_decoder(
        options.target,
        options.draft,
        replace(options.drafting, num_draft_tokens=DEFAULT_DRAFT_TOKENS),
        dtype=options.dtype,
        sampler=Sampling(temperature=options.temp, seed=options.seed),
        note=note,
    )
    keep_loaded()
    if not texts:
        target = decoder.target
        language = language_of_model(target.tokenizer.fingerprint, target.folder)
        note(f"prompts -> those in {language}; --language CODE chooses others")
        texts = texts_in(language=language)
    for one in texts:  # packs of their languages are compiled before a clock runs
        prompt = decoder.prompt(one.text, use_template=False)
        decoder = replace(decoder, drafting=decoder.drafting.for_prompt(prompt.target))
    about = {
        "target": options.target,
        "draft": options.draft,
        "drafter": options.drafting.drafter and str(options.drafting.drafter),
        "max_tokens": options.max_tokens,
        "temperature": options.temp,
        "seed": options.seed,
        "dtype": choose_dtype(options.dtype) or "of the weights",
        "chat_template": not plain,
        "prompt_tokens": options.prompt_tokens or "all",
        "machine": device_name(),
        "mlx": mlx_version(),
        "tokalign": __version__,
    }
    bench, found = _bench(options, decoder, texts), []
    with progress(len(bench.prompts) * len(bench.conditions), "measuring") as advance:
        for measurement in bench.run():
            found.append(measurement)
            advance(1)
    return about, found


def _bench(options: Options, decoder: Decoder, texts: Sequence[PromptText]) -> Bench:
    from tokalign.evaluate.bench import Bench
    from tokalign.evaluate.comparison import PLAIN, conditions_of
    from tokalign.runtime.draft.opening_knowledge import opening_knowledge

    draft, dictionary = decoder.draft, decoder.drafting.dictionary
    names = [name for name in options.methods if name != PLAIN]
    for name in names:
        choose_method(
            name if name in METHODS else "draft",
            draft=draft is not None,
            dictionary=dictionary is not None,
            drafter=decoder.drafter is not None,
        )
    say_once = cache(note)
    return Bench(
        decoder=decoder,
        prompts={one.block: partial(_prompt, options, one) for one in texts},
        conditions=conditions_of(
            decoder.drafting,
            names if options.methods else None,
            lengths=options.lengths,
            pair=None if draft is None else (decoder.target.tokenizer, draft.tokenizer),
            with_drafter=decoder.drafter is not None,
        ),
        max_tokens=options.max_tokens,
        seed=options.seed,
        knowledge=lambda one: opening_knowledge(
            one.target.model, one.drafting_model, note=say_once
        ),
    )


def _prompt(options: Options, one: PromptText, decoder: Decoder) -> Prompt:
    prompt = decoder.prompt(one.text, use_template=not one.window)
    if one.window and options.prompt_tokens:
        return replace(prompt, target=prompt.target[: options.prompt_tokens], draft=None)
    return prompt


# -- tables ----------------------------------------------------------------------------------------

HEAD = (
    "condition", "k", "acceptance", "tokens/round", "passes/round", "host ms", "tokens/s",
    "speed-up (quartiles)", "than plain", "ids that differ",
)  # fmt: skip
"""The columns that `cells` fills; `docs/metrics.md` says what they mean."""


def cells(row: Row) -> tuple[str, ...]:
    """One condition as text, one cell per column of `HEAD`; an en dash if there is no figure."""
    drafts, timed = row.condition.drafts, row.timed
    compared = timed and not row.condition.is_plain
    return (
        row.condition.name,
        "" if row.condition.k is None else str(row.condition.k),
        f"{row.acceptance:.3f}" if drafts else "–",
        f"{row.tokens_per_round:.3f}",
        f"{row.draft_passes_per_round:.2f}",
        f"{row.host_ms:.2f}",
        f"{row.tokens_per_second:.1f}" if timed else "–",
        f"{row.speedup:.2f} ({row.low:.2f}–{row.high:.2f})" if compared else "–",
        row.against_plain or "–",
        str(row.ids_that_differ),
    )


def as_object(comparison: Comparison, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and every figure of every row, ready for JSON."""
    return {
        "about": dict(about),
        "ids_that_differ": comparison.ids_that_differ,
        "overall": [_row(row) for row in comparison.overall],
        "sets": {name: [_row(row) for row in rows] for name, rows in comparison.sets.items()},
    }


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    del values["timed"]
    found: dict[str, Any] = values.pop("condition")
    return found | {n: round(v, 6) if isinstance(v, float) else v for n, v in values.items()}
