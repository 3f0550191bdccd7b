"""Options about models and drafting that several commands have.

`MODEL` and `DRAFTING` are those of the commands that generate text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from tokalign.cli.option_types import NAME, PATH
from tokalign.runtime.methods import (
    AUTO,
    DEFAULT_ALTERNATIVES,
    METHODS,
    read_draft_tokens,
)

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

MODEL_HELP = "The model: an alias, a folder or a Hub repository."
TOKENIZER_HELP = "The target's tokenizer: an alias, a path or a Hub repository."
DRAFT_HELP = "A smaller model that drafts; its tokenizer may be another one."

target_model_option = click.option(
    "--target", "--model", "target", type=NAME, metavar="NAME", required=True, help=MODEL_HELP
)
target_tokenizer_option = click.option(
    "--target", type=NAME, metavar="NAME", required=True, help=TOKENIZER_HELP
)
draft_model_option = click.option(
    "--draft", "--draft-model", "draft", type=NAME, metavar="NAME", help=DRAFT_HELP
)
language_option = click.option(
    "--language",
    multiple=True,
    metavar="CODES",
    help="Languages of the dictionaries to look for, such as pl or pl,en; repeatable. "
    "Default: every language, unless --dictionary is given.",
)
translation_option = click.option(
    "--translation",
    metavar="NAME",
    help="How draft ids become target ids: none, context:P, intersection or exact. "
    "Default: none for one tokenizer, exact for two.",
)
alternatives_option = click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    default=DEFAULT_ALTERNATIVES,
    help="Tokens that a draft model's tree has besides one for each of its passes; 0 for chains.",
)
draft_rows_option = click.option(
    "--draft-rows",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Have the hybrid propose N tokens in every round, whatever they cost; for experiments.",
)
drafter_option = click.option(
    "--drafter",
    type=PATH,
    metavar="FOLDER",
    help="A recurrent drafter that `tokalign train-drafter` trained for TARGET. Default: the one "
    "that is found.",
)
beam_width_option = click.option(
    "--beam-width",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Propose the drafter's N best beams whole, however unlikely; for experiments.",
)
beam_length_option = click.option(
    "--beam-length",
    type=click.IntRange(1, 32),
    metavar="N",
    help="Tokens of each of the drafter's beams; for experiments.",
)
dictionary_option = click.option(
    "--dictionary",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A .dictionary.tok file; repeatable. Default: those that are found.",
)
alignment_option = click.option(
    "--alignment",
    type=PATH,
    metavar="FILE",
    help="An .alignment.tok file. Default: the one that is found.",
)
every_position_option = click.option(
    "--trace",
    type=PATH,
    metavar="FILE",
    help="Also draft at every position and record that for `tokalign project`.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Number format of the weights. Default: float32 on a CPU, else that of the files.",
)

MODEL = (
    target_model_option,
    click.option(
        "--adapter-path", type=PATH, metavar="FOLDER", help="An adapter that mlx_lm.lora trained."
    ),
    click.option(
        "--trust-remote-code", is_flag=True, help="Run the code that a model's folder brings."
    ),
    dtype_option,
)

DRAFTING = (
    draft_model_option,
    drafter_option,
    click.option(
        "--method",
        type=click.Choice((AUTO, *METHODS)),
        default=AUTO,
        show_default=True,
        help="How to draft; auto uses every source there is.",
    ),
    translation_option,
    alternatives_option,
    draft_rows_option,
    beam_width_option,
    beam_length_option,
    click.option(
        "--num-draft-tokens",
        metavar="N",
        default=AUTO,
        show_default=True,
        callback=lambda _context, _option, value: read_draft_tokens(value),
        help="Tokens drafted in a round; with auto every round chooses its own number, or none.",
    ),
    dictionary_option,
    language_option,
    alignment_option,
)


def with_options(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """A decorator for a command that has all of these options; `--help` keeps their order."""

    def decorate(command: Function) -> Function:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def take(kind: type[T], given: dict[str, Any]) -> T:
    """Make a dataclass of what click has parsed for its fields, and take that out of `given`.

    Raises: as the dataclass does.
    """
    return kind(**{field.name: given.pop(field.name) for field in fields(kind)})  # type: ignore
