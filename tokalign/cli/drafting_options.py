"""Options about drafting and models that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

from tokalign.runtime.methods import DEFAULT_ALTERNATIVES, HYBRID_ORDER

_PATH = click.Path(path_type=Path)

MODEL_HELP = "The model: an alias, a folder or a Hub repository."
TOKENIZER_HELP = "The target's tokenizer: an alias, a path or a Hub repository."
DRAFT_HELP = "A smaller model that drafts; its tokenizer may be another one."

target_model_option = click.option(
    "--target", "--model", "target", metavar="NAME", required=True, help=MODEL_HELP
)
target_tokenizer_option = click.option(
    "--target", metavar="NAME", required=True, help=TOKENIZER_HELP
)
draft_model_option = click.option(
    "--draft", "--draft-model", "draft", metavar="NAME", help=DRAFT_HELP
)
order_option = click.option(
    "--order",
    metavar="NAMES",
    default=",".join(HYBRID_ORDER),
    help="The order in which hybrid-fixed asks its sources.",
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
    help="How draft ids become target ids: none, raw, naive, context:P, intersection or exact. "
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
    type=_PATH,
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
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="A .dictionary.tok file; repeatable. Default: those that are found.",
)
alignment_option = click.option(
    "--alignment",
    type=_PATH,
    metavar="FILE",
    help="An .alignment.tok file. Default: the one that is found.",
)
every_position_option = click.option(
    "--trace",
    type=_PATH,
    metavar="FILE",
    help="Also draft at every position and record that for `tokalign project`.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Number format of the weights. Default: float32 on a CPU, else that of the files.",
)
