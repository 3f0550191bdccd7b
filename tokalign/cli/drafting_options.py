"""Options about drafting and models that several commands have."""

from __future__ import annotations

import click

from tokalign.runtime.methods import DEFAULT_ALTERNATIVES, HYBRID_ORDER

order_option = click.option(
    "--order",
    metavar="NAMES",
    default=",".join(HYBRID_ORDER),
    show_default=True,
    help="The order in which hybrid-fixed asks its sources.",
)
language_option = click.option(
    "--language",
    metavar="CODE",
    help="Language of the dictionary, where dictionaries of several languages fit.",
)
alternatives_option = click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    default=DEFAULT_ALTERNATIVES,
    show_default=True,
    help="Tokens that a draft model proposes besides its first one, in a tree.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Number format of the weights. Default: float32 on a CPU, else that of the files.",
)
