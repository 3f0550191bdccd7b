"""Options on how to draft that several commands have."""

from __future__ import annotations

import click

from tokalign.runtime.methods import DEFAULT_ALTERNATIVES, HYBRID_ORDER

order_option = click.option(
    "--order",
    metavar="NAMES",
    default=",".join(HYBRID_ORDER),
    show_default=True,
    help="Of hybrid-fixed.",
)
alternatives_option = click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    default=DEFAULT_ALTERNATIVES,
    show_default=True,
    help="Tokens proposed beside a draft model's first one, in a tree.",
)
