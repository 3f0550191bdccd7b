"""Options that several commands have, each declared once, in mlx-lm's words where it has them."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

import click

from tokalign.cli.command import (
    AT_LEAST_1,
    FILE,
    FOLDER,
    MODEL_NAME,
    MOST,
    NAME,
    POSITIVE,
    SIZE,
    STOP_TEXT,
    TEXT,
    TEXT_OR_FILE,
    VARIABLES,
    FilePath,
    Option,
    flag,
    rare,
    several,
)
from tokalign.runtime.options import (
    ALL_ENDS,
    MLX_LM_ENDS,
    CacheOptions,
    DraftingOptions,
    SamplingOptions,
)

_TYPES: dict[str | None, click.ParamType[Any]] = {
    "FILE": FILE,
    "FOLDER": FOLDER,
    "NAME": NAME,
    "SECONDS": POSITIVE,
    "SIZE": SIZE,
}


def declared_options(kind: Any) -> dict[str, Option]:
    """An option for every field that a dataclass offers; see `runtime/options.py`."""
    return {field.name: _option(field) for field in fields(kind) if field.metadata.get("about")}


def _option(field: Field[Any]) -> Option:
    offered = field.metadata
    flag = offered.get("flag", "--" + field.name.replace("_", "-"))
    reads = offered.get("reads")
    kind = _TYPES.get(offered.get("takes"))
    if "among" in offered:
        kind = click.Choice(offered["among"])
    elif "least" in offered and reads is None:
        number, most = (
            (click.FloatRange, None) if isinstance(field.default, float) else (click.IntRange, MOST)
        )
        kind = number(
            offered["least"],
            offered.get("most", most),
            min_open=offered.get("open") == "least",
            max_open=offered.get("open") == "most",
        )
    return Option(
        f"{flag}/--no-{flag[2:]}" if field.default is True else flag,
        offered["about"],
        kind,
        offered.get("shown", field.default),
        metavar=offered.get("takes"),
        is_flag=isinstance(field.default, bool),
        multiple=offered.get("several", False),
        callback=reads and (lambda _context, _option, value: value and reads(value)),
        hidden=offered.get("rare", False),
    )


# -- models and tokenizers -------------------------------------------------------------------------

_ABOUT_TARGET = "An alias (`tokalign models`), a folder or a Hub repository."
TARGET = Option("--target --model target", _ABOUT_TARGET, MODEL_NAME, required=True)
TRUST = rare("--trust-remote-code", "Run the code in a model's folder.", is_flag=True)

DTYPE = rare(
    "--dtype",
    "Number format. Default: float32 on a CPU, else that of the files.",
    click.Choice(["float32", "float16", "bfloat16"]),
)
ABOUT_NAME = "As NAME: alias, folder or Hub repository."
MODEL = (
    Option("--target --model target", ABOUT_NAME, MODEL_NAME),
    rare("--adapter-path adapter", "An adapter that mlx_lm.lora trained.", FOLDER),
    TRUST,
    DTYPE,
)

# -- drafting --------------------------------------------------------------------------------------

DRAFT = Option(
    "--draft --draft-model draft", "A smaller model that drafts; any tokenizer.", MODEL_NAME
)
_DRAFTING = declared_options(DraftingOptions)
DRAFTER, DICTIONARY, LANGUAGE, ALIGNMENT = (
    _DRAFTING[name] for name in ("drafter", "dictionary", "language", "alignment")
)
DRAFTING = (DRAFT, *_DRAFTING.values())

# -- sampling --------------------------------------------------------------------------------------

_SAMPLED = declared_options(SamplingOptions)
TEMP = _SAMPLED["temperature"]
SAMPLING = (
    *_SAMPLED.values(),
    Option("--seed", "Seed of sampling. Default: random.", click.IntRange(0, 0xFFFFFFFF)),
)
STOP = several("--stop", "End before this text; repeatable.", STOP_TEXT)
ENDS = (
    rare(
        "--extra-eos-token",
        "A further token that ends the output; repeatable.",
        TEXT,
        multiple=True,
        metavar="TOKEN",
    ),
    rare(
        "--ends",
        "End at every end of a text or turn, or where mlx-lm ends.",
        click.Choice([ALL_ENDS, MLX_LM_ENDS]),
        ALL_ENDS,
    ),
)

# -- prompts and caches ----------------------------------------------------------------------------

TEMPLATE = (
    Option(
        "--system-prompt",
        "A system message before the prompt; @FILE is a file, as in --prompt.",
        TEXT_OR_FILE,
    ),
    flag("--ignore-chat-template", "Use the text as it is, without a template."),
    rare("--chat-template-config", "Variables of the template, such as tools.", VARIABLES, "{}"),
    rare("--prefill-response", "The beginning of the answer.", TEXT),
)
CACHE = tuple(declared_options(CacheOptions).values())
GENERATION = (*MODEL, *DRAFTING, *SAMPLING, STOP, *ENDS, *TEMPLATE, *CACHE)

# -- texts and what a command shows ----------------------------------------------------------------

FIELD = rare(
    "--field",
    "The field or column with the text, of .jsonl and Parquet files.",
    NAME,
    "text",
    metavar="TEXT",
)
LIMIT = Option("--limit", "Only the first N texts of each file.", AT_LEAST_1)
PAGE = FilePath(".html", mark='content="tokalign"')
HTML = Option("--html", "Also write a page with plots.", PAGE)
COLOR = Option("--color/--no-color", "Colour each token by how it came about.", default=False)
