"""`tokalign decode`: generate text with a target model, faster, and with exactly its own output."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.decoded import as_text, legend, styled
from tokalign.cli.drafting_options import alternatives_option, order_option
from tokalign.cli.loading import keep_loaded, pair_tables
from tokalign.cli.output import colours_wanted, json_option, note, print_json, quiet_option
from tokalign.runtime.methods import (
    METHODS,
    MODEL_METHODS,
    TABLE_METHODS,
    check_translation,
    choose_method,
    choose_translation,
    read_draft_tokens,
    read_order,
)

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder, LanguageModel, Prompt
    from tokalign.runtime.draft_length.pace import Pace
    from tokalign.runtime.drafting import Drafting
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.mlx.cache import CacheOptions
    from tokalign.runtime.mlx.sampling import Acceptance, Sampling

_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, as typed."""

    target: str
    draft: str | None
    method: str
    order: str
    translation: str | None
    num_draft_tokens: int | None
    alternatives: int
    temp: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    acceptance: Acceptance
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    prefill_step_size: int
    dtype: str | None
    ignore_chat_template: bool
    system_prompt: str | None
    stop: tuple[str, ...]
    prompt: str
    max_tokens: int
    dictionary: Path | None
    alignment: Path | None
    color: bool | None
    as_json: bool
    trace: Path | None
    quiet: bool

    def note(self, message: str) -> None:
        note(message, quiet=self.quiet)


@click.command("decode")
@click.option("--target", "--model", "target", metavar="NAME", required=True, help="The model.")
@click.option("--draft", "--draft-model", "draft", metavar="NAME", help="A smaller model.")
@click.option("--method", type=click.Choice(("auto", *METHODS)), default="auto", show_default=True)
@order_option
@click.option("--translation", metavar="NAME", help="none, naive, context:P, intersection, exact.")
@alternatives_option
@click.option(
    "--num-draft-tokens",
    metavar="N",
    default="auto",
    show_default=True,
    callback=lambda _context, _option, value: read_draft_tokens(value),
    help="In a round; auto has each round choose by expected gain, 0 included.",
)
@click.option("--trace", type=_PATH, metavar="FILE", help="Record offers for `tokalign project`.")
@click.option("-p", "--prompt", required=True, help="The prompt; - reads it from stdin.")
@click.option("-m", "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--temp", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--top-p", type=click.FloatRange(0, 1), default=0.0, help="0 and 1 are off.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="0 is off.")
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="0 is off.")
@click.option("--seed", type=click.IntRange(0, 0xFFFFFFFF), help="Default: another every time.")
@click.option(
    "--acceptance",
    type=click.Choice(["match", "residual"]),
    default="match",
    show_default=True,
    help="When sampling, match gives plain decoding's text for a seed; residual only its law.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option("--system-prompt", metavar="TEXT")
@click.option("--ignore-chat-template", is_flag=True, help="Take the prompt as it is.")
@click.option("--dictionary", type=_PATH, metavar="FILE", help="A .dictionary.tok file.")
@click.option("--alignment", type=_PATH, metavar="FILE", help="An .alignment.tok file.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Of weights.")
@click.option("--kv-bits", type=click.Choice(["2", "3", "4", "6", "8"]), help="Quantize the cache.")
@click.option("--kv-group-size", type=int, default=64, show_default=True)
@click.option("--quantized-kv-start", type=int, default=5000, show_default=True)
@click.option("--prefill-step-size", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--color/--no-color", default=None, help="How each token came about.")
@json_option
@quiet_option
def command(**given: Any) -> None:
    """Generate text with TARGET. Drafting changes how fast, never what.

    Text goes to stdout, statistics to stderr; with --json everything is one object on stdout.
    """
    if given["kv_bits"] is not None:
        given["kv_bits"] = int(given["kv_bits"])
    options = Options(**given)
    _check(options)
    from tokalign.runtime.generate import Generation

    decoder = _load(options)
    prompt = _read_prompt(options, decoder)
    generation = Generation(decoder, prompt, stop=options.stop, max_tokens=options.max_tokens)
    try:
        _show_text(generation, options)
    except KeyboardInterrupt:
        _show_statistics(generation, options, interrupted=True)
        raise
    _show_statistics(generation, options, interrupted=False)
    if decoder.drafting.pace is not None and (why := decoder.drafting.pace.why_plain()):
        options.note(why)
    if options.trace is not None:
        _write_trace(generation, options.trace)


def _check(options: Options) -> None:
    """Refuse what can be refused before anything is loaded."""
    read_order(options.order)
    if options.translation is not None:
        check_translation(options.translation)
    if options.method == "draft":
        choose_method("draft", draft=options.draft is not None, dictionary=False)


def _load(options: Options) -> Decoder:
    """Find and load models and tables; say which ones."""
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.drafting import Drafting
    from tokalign.tables.opening import open_dictionary
    from tokalign.tokenizer.registry import resolve_model

    location = resolve_model(options.target)
    options.note(location.description)
    target = LanguageModel.from_folder(location.folder, dtype=options.dtype)
    dictionary = None
    if options.method in ("auto", *TABLE_METHODS):
        dictionary = open_dictionary(
            target.tokenizer, file=options.dictionary, beside=location.folder, note=options.note
        )
    method = choose_method(
        options.method, draft=options.draft is not None, dictionary=dictionary is not None
    )
    draft = _load_draft(options) if method in MODEL_METHODS else None
    drafting = Drafting(
        method=method,
        num_draft_tokens=options.num_draft_tokens,
        alternatives=options.alternatives,
        order=read_order(options.order),
        dictionary=dictionary,
    )
    if draft is not None:
        drafting = replace(drafting, **_translate_from(draft, target, location.folder, options))
    _explain(options, drafting, with_model=draft is not None)
    if options.num_draft_tokens is None and method != "plain":
        drafting = replace(drafting, pace=_pace(options, target, draft))
    keep_loaded()
    return Decoder(
        target=target,
        draft=draft,
        drafting=drafting,
        sampler=_sampling(options),
        cache=_cache(options),
    )


def _pace(options: Options, target: LanguageModel, draft: LanguageModel | None) -> Pace:
    from tokalign.runtime.draft_length.known_costs import opening_pace

    return opening_pace(target.model, draft and draft.model, note=options.note)


def _load_draft(options: Options) -> LanguageModel | None:
    from tokalign.runtime.decoder import LanguageModel
    from tokalign.tokenizer.registry import resolve_model

    if options.draft is None:
        return None
    location = resolve_model(options.draft)
    options.note(location.description)
    return LanguageModel.from_folder(location.folder, dtype=options.dtype)


def _translate_from(
    draft: LanguageModel, target: LanguageModel, folder: Path, options: Options
) -> dict[str, Any]:
    """The part of `Drafting` that depends on the pair."""
    return {
        "translation": choose_translation(options.translation, target.tokenizer, draft.tokenizer),
        "alignment": pair_tables(
            target.tokenizer,
            draft.tokenizer,
            beside=folder,
            file=options.alignment,
            note=options.note,
        ),
    }


def _explain(options: Options, drafting: Drafting, *, with_model: bool) -> None:
    """Say once what `auto` stands for here, and what it goes without."""
    if options.method != "auto":
        return
    sources, missing = ["context copy"], []
    if drafting.dictionary is not None:
        sources.append("dictionary")
    else:
        missing.append("no dictionary fits this tokenizer (tokalign build)")
    if with_model:
        sources.append(f"draft model, translation {drafting.translation}")
    else:
        missing.append("a draft model (--draft) was not given")
    options.note("; ".join([f"method auto -> hybrid of {', '.join(sources)}", *missing]))


def _sampling(options: Options) -> Sampling:
    """Raises: UsageError where mlx-lm's filters would refuse."""
    from tokalign.runtime.mlx.sampling import Sampling

    return Sampling(
        temperature=options.temp,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed if options.seed is not None else randbits(32),
        acceptance=options.acceptance,
    )


def _cache(options: Options) -> CacheOptions:
    from tokalign.runtime.mlx.cache import CacheOptions

    return CacheOptions(
        prefill_step_size=options.prefill_step_size,
        kv_bits=options.kv_bits,
        kv_group_size=options.kv_group_size,
        quantized_kv_start=options.quantized_kv_start,
    )


def _read_prompt(options: Options, decoder: Decoder) -> Prompt:
    """The prompt, rendered for each model by its own template."""
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    return decoder.prompt(
        text, system=options.system_prompt, use_template=not options.ignore_chat_template
    )


def _write_trace(generation: Generation, path: Path) -> None:
    from tokalign.evaluate.recorded_proposals import trace_of_run, write_trace

    write_trace(trace_of_run(generation.saved_run()), path)


def _show_text(generation: Generation, options: Options) -> None:
    """Print the text as it comes, each token in the style of its outcome; with --json only run."""
    color = colours_wanted() if options.color is None else options.color
    if color and not options.as_json:
        options.note(legend())
    for text, outcome in generation.texts():
        if not options.as_json and text:
            sys.stdout.write(styled(text, outcome) if color else text)
            sys.stdout.flush()
    if not options.as_json:
        sys.stdout.write("\n")


def _show_statistics(generation: Generation, options: Options, *, interrupted: bool) -> None:
    ended = {"finish_reason": "interrupted"} if interrupted else {}
    if options.as_json:
        print_json(generation.saved_run().to_json() | ended)
    elif not options.quiet:
        print("\n" + as_text(generation.summary() | ended), file=sys.stderr)
