"""`tokalign decode`: generate text with a target model, faster, and with exactly its own output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.command import FILE, MAX_TOKENS, TEXT, Command, Option, Words, rare
from tokalign.cli.generation import Printer, PromptOptions, as_text, legend, load
from tokalign.cli.options import COLOR, GENERATION, PAGE
from tokalign.cli.output import (
    flags,
    note,
    print_json,
    read_all,
    read_text_file,
    reading_stdin,
    text_or_file,
    to_stderr,
)
from tokalign.errors import UsageError
from tokalign.runtime.options import take
from tokalign.storage import write_file

if TYPE_CHECKING:
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.grammar import Grammar

_OPTIONS = (
    Option(
        "-p --prompt",
        "The same as the word PROMPT; - reads stdin, @FILE a file, @@ begins one with an @.",
        TEXT,
        metavar="TEXT",
    ),
    Option("-m --max-tokens", "Most tokens to generate; -1: as many as fit.", MAX_TOKENS, "256"),
    *GENERATION,
    Option("--json-schema", "Have the output be JSON of this schema.", FILE),
    Option("--html", "Also write a page of how each token came about.", PAGE),
    COLOR,
    rare(
        "--verbose",
        "Also show where files are, and host times; False is --quiet, as in mlx-lm.",
        click.BOOL,
        None,
        is_flag=False,
        flag_value=True,
        metavar="[BOOLEAN]",
    ),
    Words("[NAME] [PROMPT]"),
)


@click.command("decode", cls=Command, params=[*_OPTIONS])
def command(
    *,
    prompt: str | None,
    max_tokens: int | None,
    json_schema: Path | None,
    html: Path | None,
    color: bool,
    verbose: bool | None,
    **values: Any,
) -> None:
    """Generate text with the model NAME after PROMPT, or after stdin.

    Drafting changes the speed; the text is the target's own. It goes to stdout and statistics to
    stderr; with --json one object on stdout has both.
    """
    flags.quiet = flags.quiet or verbose is False
    named = {name: values[name] and str(values[name]) for name in ("target", "draft", "drafter")}
    options, text = take(PromptOptions, values), read_prompt(prompt)
    grammar = None if json_schema is None else _read_schema(json_schema)
    decoder, sampling = load(values, details=bool(verbose))
    from tokalign.runtime.chat import as_messages
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.request import Request

    request = Request(
        options.prompt(decoder, as_messages(text, system=options.system_prompt)),
        max_tokens=max_tokens,
        sampler=sampling,
        grammar=grammar,
        stop=options.stop,
    )
    generation = Generation(decoder, request)

    summary: dict[str, Any] = {}
    try:
        _show_text(generation, color=color)
    except KeyboardInterrupt:
        summary["finish_reason"] = "interrupted"
    decoder.remember()
    summary = generation.summary() | summary
    if flags.as_json:
        print_json({**named, "prompt": text, **summary})
    else:
        statistics = as_text(summary, generation.rounds, host_times=bool(verbose))
        note(f"\n{statistics}", lines=True)
    if summary["finish_reason"] == "interrupted":
        raise KeyboardInterrupt
    if decoder.drafting.knowledge is not None and (why := decoder.drafting.knowledge.why_plain()):
        note(why)
    if html is not None:
        from tokalign.cli.page import Run, run_page

        vocabulary = decoder.target.tokenizer.vocabulary
        run = Run(generation.rounds, vocabulary, generation.summary(), text, named)
        write_file(html, run_page(run))


def _read_schema(path: Path) -> Grammar:
    from tokalign.runtime.grammar import Grammar

    text = read_text_file(path, f"--json-schema {path}", "give a file with a JSON schema")
    try:
        return Grammar.json_schema(text)
    except UsageError as error:
        raise UsageError(f"--json-schema {path}: {error}") from error


def _show_text(generation: Generation, *, color: bool) -> None:
    if color and not flags.quiet:
        to_stderr(legend())
    printer = Printer(color=color)
    for pieces in generation.by_round():
        if not pieces:
            printer.reading(generation.reading)
        for piece in pieces:
            printer.write(piece.text, piece.outcome)
    printer.write(generation.rest())
    printer.end()


def read_prompt(typed: str | None) -> str:
    """The text that `--prompt` stands for, or stdin without it. Raises: UsageError."""
    if typed is None or typed == "-":
        text = "" if typed is None and sys.stdin.isatty() else _read_stdin()
        if not text:  # nobody typed it, as with --prompt ""
            raise UsageError('there is no prompt; give one: tokalign decode NAME "..."')
        return text
    return text_or_file(typed, "the prompt file")


def _read_stdin() -> str:
    try:
        with reading_stdin("give the prompt with --prompt TEXT"):
            text = read_all(sys.stdin)
        text.encode()
        return text
    except UnicodeError as error:
        raise UsageError("the prompt on stdin is not UTF-8; give it in UTF-8") from error
