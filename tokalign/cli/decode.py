"""`tokalign decode`: generate text with a target model, faster, and with exactly its own output."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.decoded import as_text, legend, styled
from tokalign.cli.drafting_options import (
    alignment_option,
    alternatives_option,
    dictionary_option,
    draft_rows_option,
    dtype_option,
    language_option,
    order_option,
    translation_option,
)
from tokalign.cli.output import colours_wanted, json_option, note, print_json, quiet_option
from tokalign.cli.streams import for_stdout, tell, write
from tokalign.errors import UsageError
from tokalign.runtime.methods import AUTO, METHODS, read_draft_tokens, read_order

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.mlx.sampling import Acceptance

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
    draft_rows: int | None
    temp: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    acceptance: Acceptance
    kv_bits: str | None
    kv_group_size: int
    quantized_kv_start: int
    prefill_step_size: int
    dtype: str | None
    ignore_chat_template: bool
    chat_template_config: dict[str, object]
    system_prompt: str | None
    stop: tuple[str, ...]
    prompt: str
    max_tokens: int
    dictionary: Path | None
    language: str | None
    alignment: Path | None
    color: bool | None
    as_json: bool
    trace: Path | None
    quiet: bool

    def note(self, message: str) -> None:
        """Print a line on stderr unless `quiet`."""
        note(message, quiet=self.quiet)


def _read_text(_context: click.Context, option: click.Parameter, value: Any) -> Any:
    """One text or several, as typed. Raises: UsageError for one that is not UTF-8.

    Other bytes reach a command as halves of surrogate pairs, which no tokenizer takes.
    """
    try:
        "".join(value or "").encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{option.opts[-1]} is not UTF-8; give it text in UTF-8") from error
    return value


def _read_stdin() -> str:
    """The prompt on stdin. Raises: UsageError."""
    try:
        text = sys.stdin.read()
        text.encode()
        return text
    except UnicodeError as error:
        raise UsageError("the prompt on stdin is not UTF-8; give it in UTF-8") from error
    except OSError as error:
        raise UsageError(
            f"stdin cannot be read ({error.strerror or error}); give the prompt with --prompt TEXT"
        ) from error


def _read_max_tokens(_context: click.Context, _option: click.Parameter, value: int) -> int:
    """As in mlx-lm, -1 stands for as many as the context holds. Raises: UsageError."""
    if value == -1 or value >= 1:
        return value
    raise UsageError(f"--max-tokens {value} generates nothing; give a number, or -1 for no limit")


def _read_variables(_context: click.Context, _option: click.Parameter, value: str) -> object:
    """The variables of a chat template. Raises: UsageError if they are no JSON object."""
    try:
        variables = json.loads(value)
    except ValueError:
        variables = None
    if isinstance(variables, dict):
        return variables
    raise UsageError(
        f"--chat-template-config {value} is not a JSON object; "
        """give one such as '{"enable_thinking": false}'"""
    )


@click.command("decode")
@click.option("--target", "--model", "target", metavar="NAME", required=True, help="The model.")
@click.option("--draft", "--draft-model", "draft", metavar="NAME", help="A smaller model.")
@click.option(
    "--method",
    type=click.Choice((AUTO, *METHODS)),
    default=AUTO,
    show_default=True,
    help="How to draft; auto uses every source there is.",
)
@order_option
@translation_option
@alternatives_option
@draft_rows_option
@click.option(
    "--num-draft-tokens",
    metavar="N",
    default=AUTO,
    show_default=True,
    callback=lambda _context, _option, value: read_draft_tokens(value),
    help="Tokens drafted in a round; with auto every round chooses its own number, or none.",
)
@click.option(
    "--trace", type=_PATH, metavar="FILE", help="Record the proposals for `tokalign project`."
)
@click.option(
    "-p",
    "--prompt",
    required=True,
    callback=_read_text,
    help="The prompt; - reads it from stdin.",
)
@click.option(
    "-m",
    "--max-tokens",
    type=int,
    default=256,
    show_default=True,
    callback=_read_max_tokens,
    help="Tokens to generate at most; -1 for as many as the context holds.",
)
@click.option(
    "--temp",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 is greedy decoding.",
)
@click.option("--top-p", type=click.FloatRange(0, 1), default=0.0, help="0 and 1 are off.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="0 is off.")
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="0 is off.")
@click.option(
    "--seed", type=click.IntRange(0, 0xFFFFFFFF), help="Seed of sampling. Default: a random one."
)
@click.option(
    "--acceptance",
    type=click.Choice(["match", "residual"]),
    default="match",
    show_default=True,
    help="For sampling: match gives the text of plain decoding with the same seed; residual gives "
    "a text of the same distribution.",
)
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    callback=_read_text,
    help="End before this text; repeatable.",
)
@click.option(
    "--system-prompt",
    metavar="TEXT",
    callback=_read_text,
    help="A system message before the prompt.",
)
@click.option(
    "--chat-template-config",
    metavar="JSON",
    default="{}",
    callback=_read_variables,
    help="Variables of the chat template, such as enable_thinking or tools.",
)
@click.option(
    "--ignore-chat-template", is_flag=True, help="Use the prompt as it is, without a template."
)
@dictionary_option
@language_option
@alignment_option
@dtype_option
@click.option(
    "--kv-bits",
    type=click.Choice(["2", "3", "4", "6", "8"]),
    help="Quantize the key-value cache to so many bits.",
)
@click.option(
    "--kv-group-size",
    type=int,
    default=64,
    show_default=True,
    help="Group size of the quantized cache.",
)
@click.option(
    "--quantized-kv-start",
    type=int,
    default=5000,
    show_default=True,
    help="Quantize the cache from this position on.",
)
@click.option(
    "--prefill-step-size",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Prompt tokens read in one pass.",
)
@click.option(
    "--color/--no-color",
    default=None,
    help="Colour each token by how it came about. Default: on a terminal.",
)
@json_option
@quiet_option
def command(**given: Any) -> None:
    """Generate text with TARGET. Drafting changes the speed, never the output.

    Text goes to stdout and statistics to stderr; with --json one object on stdout has both.
    """
    options = Options(**given)
    from tokalign.runtime.chat import as_messages
    from tokalign.runtime.generate import Generation

    decoder = _load(options)
    generation = Generation(
        decoder,
        decoder.prompt(
            as_messages(
                _read_stdin() if options.prompt == "-" else options.prompt,
                system=options.system_prompt,
            ),
            use_template=not options.ignore_chat_template,
            variables=options.chat_template_config,
        ),
        stop=options.stop,
        max_tokens=None if options.max_tokens < 0 else options.max_tokens,
    )
    try:
        _show_text(generation, options)
    except KeyboardInterrupt:
        _show_statistics(generation, options, interrupted=True)
        raise
    _show_statistics(generation, options, interrupted=False)
    if decoder.drafting.knowledge is not None and (why := decoder.drafting.knowledge.why_plain()):
        options.note(why)
    if options.trace is not None:
        _write_trace(generation, options.trace)


def _load(options: Options) -> Decoder:
    """Load what the options name. Raises: UsageError before anything is loaded, if it can be."""
    from tokalign.assemble import DraftingOptions, keep_loaded, load_decoder

    drafting = DraftingOptions(
        method=options.method,
        translation=options.translation,
        num_draft_tokens=options.num_draft_tokens,
        alternatives=options.alternatives,
        draft_rows=options.draft_rows,
        order=read_order(options.order),
        dictionary=options.dictionary,
        language=options.language,
        alignment=options.alignment,
    )
    from tokalign.runtime.mlx.cache import CacheOptions
    from tokalign.runtime.mlx.sampling import Sampling

    decoder = load_decoder(
        options.target,
        options.draft,
        drafting,
        dtype=options.dtype,
        sampler=Sampling(
            temperature=options.temp,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            seed=options.seed if options.seed is not None else randbits(32),
            acceptance=options.acceptance,
        ),
        cache=CacheOptions(
            prefill_step_size=options.prefill_step_size,
            kv_bits=None if options.kv_bits is None else int(options.kv_bits),
            kv_group_size=options.kv_group_size,
            quantized_kv_start=options.quantized_kv_start,
        ),
        note=options.note,
    )
    keep_loaded()
    return decoder


def _write_trace(generation: Generation, path: Path) -> None:
    from tokalign.evaluate.recorded_proposals import trace_of_run, write_trace

    write_trace(trace_of_run(generation.saved_run()), path)


def _show_text(generation: Generation, options: Options) -> None:
    """Run the generation and, unless --json is given, print its text as it comes."""
    color = colours_wanted() if options.color is None else options.color
    if color and not options.as_json and not options.quiet:
        tell(legend())
    for text, outcome in generation.texts():
        if not options.as_json and text:
            shown = for_stdout(text)
            write(styled(shown, outcome) if color else shown)
    if not options.as_json:
        write("\n")


def _show_statistics(generation: Generation, options: Options, *, interrupted: bool) -> None:
    ended = {"finish_reason": "interrupted"} if interrupted else {}
    if options.as_json:
        print_json(generation.saved_run().to_json() | ended)
    elif not options.quiet:
        tell("\n" + as_text(generation.summary() | ended))
