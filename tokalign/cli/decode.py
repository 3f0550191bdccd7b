"""`tokalign decode`: generate text with a target model, faster, and with exactly its own output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.atomic_file import require_writable
from tokalign.cli.decoded import as_text, legend, styled
from tokalign.cli.generation_options import (
    GenerationOptions,
    generation_options,
    read_max_tokens,
    take_generation,
)
from tokalign.cli.idle_options import refuse_idle
from tokalign.cli.option_types import PATH
from tokalign.cli.output import json_option, note, print_json, quiet_option
from tokalign.cli.prompt_text import prompt_option, read_prompt
from tokalign.cli.streams import for_stdout, tell, write

if TYPE_CHECKING:
    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.generate import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is `decode`'s own on the command line."""

    prompt: str
    max_tokens: int | None
    color: bool
    verbose: bool | None
    as_json: bool
    trace: Path | None
    quiet: bool

    @property
    def is_quiet(self) -> bool:
        """`--verbose False` is mlx-lm's way to ask for the response alone."""
        return self.quiet or self.verbose is False

    def note(self, message: str) -> None:
        """Print a line on stderr unless `quiet`."""
        note(message, quiet=self.is_quiet)


@click.command("decode")
@prompt_option()
@click.option(
    "-m",
    "--max-tokens",
    type=int,
    default=256,
    show_default=True,
    callback=read_max_tokens,
    help="Tokens to generate at most; -1 for as many as the context holds.",
)
@generation_options
@click.option(
    "--trace", type=PATH, metavar="FILE", help="Record the proposals for `tokalign project`."
)
@click.option("--color/--no-color", default=False, help="Colour each token by how it came about.")
@click.option(
    "--verbose",
    type=click.BOOL,
    is_flag=False,
    flag_value=True,
    default=None,
    metavar="[BOOLEAN]",
    help="Also say how the host spent its time; False is the same as --quiet, as in mlx-lm.",
)
@json_option
@quiet_option
def command(**given: Any) -> None:
    """Generate text with TARGET. Drafting changes the speed, never the output.

    Text goes to stdout and statistics to stderr; with --json one object on stdout has both.
    """
    model = take_generation(given)
    options = Options(**given)
    if options.as_json:
        refuse_idle(("color", "verbose"), beside="--json")
    if options.quiet:
        refuse_idle(("verbose",), beside="--quiet")

    if options.trace is not None:
        require_writable(options.trace)
    text = read_prompt(options.prompt)
    decoder = model.load(note=options.note)
    generation = _begin(decoder, model, options, text)
    try:
        _show_text(generation, options)
    except KeyboardInterrupt:
        _show_statistics(generation, options, decoder.plain_seconds, interrupted=True)
        raise
    _show_statistics(generation, options, decoder.plain_seconds, interrupted=False)
    if decoder.drafting.knowledge is not None and (why := decoder.drafting.knowledge.why_plain()):
        options.note(why)
    if options.trace is not None:
        _write_trace(generation, options.trace)


def _begin(decoder: Decoder, model: GenerationOptions, options: Options, text: str) -> Generation:
    from tokalign.runtime.chat import as_messages
    from tokalign.runtime.generate import Generation

    messages = as_messages(text, system=model.system_prompt, prefill=model.prefill_response)
    prompt = decoder.prompt(
        messages, use_template=not model.ignore_chat_template, variables=model.chat_template_config
    )
    return Generation(decoder, prompt, stop=model.stop, max_tokens=options.max_tokens)


def _write_trace(generation: Generation, path: Path) -> None:
    from tokalign.evaluate.recorded_proposals import trace_of_run, write_trace

    write_trace(trace_of_run(generation.saved_run()), path)


def _show_text(generation: Generation, options: Options) -> None:
    """Run the generation and, unless --json is given, print its text as it comes."""
    if options.color and not options.as_json and not options.is_quiet:
        tell(legend())
    for text, outcome in generation.texts():
        if not options.as_json and text:
            shown = for_stdout(text)
            write(styled(shown, outcome) if options.color else shown)
    if not options.as_json:
        write("\n")


def _show_statistics(
    generation: Generation, options: Options, plain_seconds: float | None, *, interrupted: bool
) -> None:
    ended = {"finish_reason": "interrupted"} if interrupted else {}
    if options.as_json:
        print_json(generation.saved_run().to_json() | ended)
    elif not options.is_quiet:
        summary = generation.summary() | ended
        table = as_text(summary, plain_seconds=plain_seconds, host_times=bool(options.verbose))
        tell("\n" + table)
