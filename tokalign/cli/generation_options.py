"""What `decode` and `chat` have in common: models, drafting, sampling, templates, caches.

Every option is written once, in mlx-lm's words where mlx-lm has it. A command takes them all with
`@generation_options` and reads them with `take_generation`. Commands that need a part of
them take the lists `TEMPLATE` and `CACHE`, and those of `drafting_options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.drafting_options import DRAFTING, MODEL, take, with_options
from tokalign.cli.idle_options import (
    refuse_idle,
    refuse_idle_cache,
    refuse_idle_drafting,
    refuse_idle_sampling,
    refuse_idle_template,
)
from tokalign.cli.option_types import FiniteRange
from tokalign.cli.prompt_text import read_text
from tokalign.errors import UsageError
from tokalign.json_text import parse_json

if TYPE_CHECKING:
    from tokalign.assemble import BeforeCosts
    from tokalign.drafting_options import DraftingOptions
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.mlx.cache import CacheOptions
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.tables.finding import Note
    from tokalign.tokenizer.vocabulary import TargetId


def read_max_tokens(_context: click.Context, _option: click.Parameter, value: int) -> int | None:
    """As in mlx-lm, -1 stands for as many as the context holds, here None. Raises: UsageError."""
    if value == -1:
        return None
    if value >= 1:
        return value
    raise UsageError(f"--max-tokens {value} generates nothing; give a number, or -1 for no limit")


def read_variables(_context: click.Context, option: click.Parameter, value: str) -> object:
    """The variables of a chat template. Raises: UsageError if they are no JSON object."""
    try:
        variables = parse_json(value)
    except ValueError:
        variables = None
    if not isinstance(variables, dict):
        raise UsageError(
            f"{option.opts[0]} {value} is not a JSON object; "
            """give one such as '{"enable_thinking": false}'"""
        )
    if variables:
        from tokalign.runtime.chat import RESERVED

        if reserved := RESERVED & variables.keys():
            raise UsageError(
                f"{option.opts[0]} may not have {', '.join(sorted(reserved))}, which no template "
                "reads; give variables of the template"
            )
    return variables


SAMPLING = (
    click.option(
        "--temp",
        type=FiniteRange(min=0),
        default=0.0,
        show_default=True,
        help="Sampling temperature; 0 is greedy decoding.",
    ),
    click.option(
        "--top-p",
        type=FiniteRange(0, 1),
        default=0.0,
        help="Sample among the likeliest tokens of this probability together; 0 and 1 are off.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=0,
        help="Sample among so many of the likeliest tokens; 0 is off.",
    ),
    click.option(
        "--min-p",
        type=FiniteRange(0, 1),
        default=0.0,
        help="Leave out tokens less probable than this share of the likeliest; 0 is off.",
    ),
    click.option(
        "--xtc-probability",
        type=FiniteRange(0, 1),
        default=0.0,
        help="How often to leave out the likeliest tokens; 0 is off.",
    ),
    click.option(
        "--xtc-threshold",
        type=FiniteRange(0, 0.5),
        default=0.1,
        show_default=True,
        help="Tokens of at least this probability may be left out, all but one.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 0xFFFFFFFF), help="Seed of sampling. Default: random."
    ),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        callback=read_text,
        help="End before this text; repeatable.",
    ),
    click.option(
        "--extra-eos-token",
        multiple=True,
        metavar="TOKEN",
        callback=read_text,
        help="A further token that ends the output; repeatable.",
    ),
)

TEMPLATE = (
    click.option(
        "--system-prompt",
        metavar="TEXT",
        callback=read_text,
        help="A system message before the prompt.",
    ),
    click.option(
        "--chat-template-config",
        metavar="JSON",
        default="{}",
        callback=read_variables,
        help="Variables of the chat template, such as enable_thinking or tools.",
    ),
    click.option(
        "--ignore-chat-template", is_flag=True, help="Use the text as it is, without a template."
    ),
)

PREFILL_RESPONSE = click.option(
    "--prefill-response",
    metavar="TEXT",
    callback=read_text,
    help="The beginning of the answer; the model continues it.",
)

CACHE = (
    click.option(
        "--max-kv-size",
        type=click.IntRange(min=8),
        help="Keep at most so many tokens of the context, the first four and the latest. Once they "
        "are full nothing is drafted, because such a cache cannot be rewound.",
    ),
    click.option(
        "--kv-bits",
        type=click.Choice(["2", "3", "4", "6", "8"]),
        callback=lambda _context, _option, value: None if value is None else int(value),
        help="Quantize the key-value cache to so many bits.",
    ),
    click.option(
        "--kv-group-size",
        type=int,
        default=64,
        show_default=True,
        help="Group size of the quantized cache.",
    ),
    click.option(
        "--quantized-kv-start",
        type=int,
        default=5000,
        show_default=True,
        help="Quantize the cache from this position on.",
    ),
    click.option(
        "--prefill-step-size",
        type=click.IntRange(min=1),
        default=2048,
        show_default=True,
        help="Prompt tokens read in one pass.",
    ),
)


generation_options = with_options(*MODEL, *DRAFTING, *SAMPLING, *TEMPLATE, PREFILL_RESPONSE, *CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The options of `generation_options`, as typed; read with `take_generation`."""

    target: str
    adapter_path: Path | None
    trust_remote_code: bool
    dtype: str | None
    cache: CacheOptions
    draft: str | None
    drafting: DraftingOptions
    temp: float
    top_p: float
    top_k: int
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    seed: int | None
    stop: tuple[str, ...]
    extra_eos_token: tuple[str, ...]
    system_prompt: str | None
    chat_template_config: dict[str, object]
    ignore_chat_template: bool
    prefill_response: str | None

    def load(
        self, *, before_costs: BeforeCosts = lambda _target, _drafts: None, note: Note
    ) -> Decoder:
        """Load what is named and assemble a decoder. before_costs: as in `assemble`.

        Raises: UsageError before anything is loaded, if it can be; as `load_decoder`.
        """
        from tokalign.assemble import keep_loaded, load_decoder
        from tokalign.runtime.decoder import tokens_that_stop

        decoder = load_decoder(
            self.target,
            self.draft,
            self.drafting,
            dtype=self.dtype,
            adapter=self.adapter_path,
            trust_remote_code=self.trust_remote_code,
            cache=self.cache,
            before_costs=before_costs,
            note=note,
        )
        if decoder.drafter is None and self.draft is None:
            refuse_idle(("alternatives",), without="--draft NAME or --drafter FOLDER")
        target = decoder.target
        more = tokens_that_stop(target.tokenizer, self.extra_eos_token)
        target = replace(target, stop_ids=target.stop_ids | more)
        decoder = replace(decoder, target=target, sampler=self._sampling(target))
        if self.cache.max_kv_size is not None:
            note(_about_max_kv_size(decoder))
        keep_loaded()
        return decoder

    def _sampling(self, target: LanguageModel[TargetId]) -> Sampling:
        from tokalign.runtime.mlx.sampling import Sampling

        # As in mlx-lm, XTC leaves line feeds and the ends of the output alone.
        exempt = {*target.tokenizer.encode("\n"), *target.stop_ids}
        return Sampling(
            temperature=self.temp,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            xtc_exempt=tuple(sorted(exempt)) if self.xtc_probability else (),
            seed=self.seed if self.seed is not None else randbits(32),
        )


def take_generation(given: dict[str, Any]) -> GenerationOptions:
    """Take the values of `generation_options` out of what click has parsed. Raises: UsageError."""
    from tokalign.drafting_options import DraftingOptions
    from tokalign.runtime.mlx.cache import CacheOptions

    refuse_idle_drafting()
    refuse_idle_sampling()
    refuse_idle_template()
    refuse_idle_cache()
    given["cache"] = take(CacheOptions, given)
    given["drafting"] = take(DraftingOptions, given)
    return take(GenerationOptions, given)


def _about_max_kv_size(decoder: Decoder) -> str:
    from tokalign.runtime.limits import UNBOUNDED

    rewindable = decoder.open_target().rewindable
    if rewindable == UNBOUNDED:
        return "--max-kv-size has no effect, as in mlx-lm: this model makes a cache of its own kind"
    return (
        f"--max-kv-size: drafting stops when the context has {rewindable} tokens, because a full "
        "rotating cache cannot be rewound"
    )
