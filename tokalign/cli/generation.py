"""From the options of `decode` and `chat` to a decoder and a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from secrets import randbits
from typing import TYPE_CHECKING, Any

from tokalign.cli.options import take

if TYPE_CHECKING:
    from tokalign.assemble import BeforeCosts
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.tables.finding import Note
    from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What `STOP` and `TEMPLATE` of `options.py` ask for."""

    stop: tuple[str, ...]
    system_prompt: str | None
    ignore_chat_template: bool
    chat_template_config: Mapping[str, object]
    prefill_response: str | None


def load(
    given: dict[str, Any],
    *,
    before_costs: BeforeCosts = lambda _target, _drafts: None,
    note: Note,
) -> Decoder:
    """Load what is named and assemble a decoder.

    given: the values of `MODEL`, `DRAFTING`, `SAMPLING`, `EXTRA_EOS_TOKEN` and `CACHE` by name,
    which are taken out. before_costs: as in `assemble`.
    Raises: UsageError before anything is loaded, if it can be; as `load_decoder`.
    """
    from tokalign.assemble import keep_loaded, load_decoder
    from tokalign.drafting_options import DraftingOptions
    from tokalign.runtime.decoder import tokens_that_stop
    from tokalign.runtime.mlx.cache import CacheOptions

    cache, drafting = take(CacheOptions, given), take(DraftingOptions, given)
    decoder = load_decoder(
        given.pop("target"),
        given.pop("draft"),
        drafting,
        dtype=given.pop("dtype"),
        adapter=given.pop("adapter_path"),
        trust_remote_code=given.pop("trust_remote_code"),
        cache=cache,
        before_costs=before_costs,
        note=note,
    )
    target = decoder.target
    more = tokens_that_stop(target.tokenizer, given.pop("extra_eos_token"))
    target = replace(target, stop_ids=target.stop_ids | more)
    decoder = replace(decoder, target=target, sampler=_sampling(given, target))
    if cache.max_kv_size is not None:
        note(_about_max_kv_size(decoder))
    keep_loaded()
    return decoder


def _sampling(given: dict[str, Any], target: LanguageModel[TargetId]) -> Sampling:
    from tokalign.runtime.mlx.sampling import Sampling

    # As in mlx-lm, XTC leaves line feeds and the ends of the output alone.
    exempt = {*target.tokenizer.encode("\n"), *target.stop_ids}
    seed = given.pop("seed")
    return replace(
        take(Sampling, given),
        temperature=given.pop("temp"),
        seed=randbits(32) if seed is None else seed,
        xtc_exempt=tuple(sorted(exempt)) if given.pop("xtc_probability", 0) else (),
    )


def _about_max_kv_size(decoder: Decoder) -> str:
    from tokalign.runtime.limits import UNBOUNDED

    rewindable = decoder.open_target().rewindable
    if rewindable == UNBOUNDED:
        return "--max-kv-size has no effect, as in mlx-lm: this model makes a cache of its own kind"
    return (
        f"--max-kv-size: drafting stops when the context has {rewindable} tokens, because a full "
        "rotating cache cannot be rewound"
    )
