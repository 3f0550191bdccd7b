"""A decoder with all that requests have to know about it: prompts of chats, ends, what it can.

`serve` answers with one. Its parts come from the target's folder and from mlx-lm, which reads the
chat template for what it says about thoughts and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.utils import load_tokenizer

from tokalign.conversation.blocks import AnswerForm
from tokalign.conversation.fill_in import fill_in_ends
from tokalign.conversation.prompts import Prompts
from tokalign.errors import CacheError, UsageError
from tokalign.runtime.chat import ChatTemplate, find_template
from tokalign.runtime.decoder import Decoder, tokens_that_stop
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.layers import forgets, leaves_of
from tokalign.runtime.mlx.weights import read_config
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answering:
    """What answers requests.

    decoder: its method is plain where the target's cache cannot be rewound. context_length: how
    many ids prompt and answer may have together. forgets: whether the target's cache cannot be cut
    back to every prefix. is_batchable: whether mlx-lm can decode several requests together.
    fill_in_ends: see `fill_in.py`.
    """

    decoder: Decoder
    prompts: Prompts
    context_length: int
    forgets: bool
    is_batchable: bool
    fill_in_ends: frozenset[TargetId]

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        *,
        note: Callable[[str], None],
        extra_eos_token: Sequence[str] = (),
        chat_template: str = "",
        use_default_chat_template: bool = False,
        trust_remote_code: bool = False,
    ) -> Answering:
        """What a decoder's models say about themselves. note: told if it decodes plainly.

        extra_eos_token: further tokens that end an answer. chat_template: in place of the model's
        own; use_default_chat_template: the tokenizer's, if the model has none.
        Raises: CacheError for a cache that cannot be quantized, UsageError for what is not there.
        """
        target = decoder.target
        extra = tokens_that_stop(target.tokenizer, extra_eos_token)
        target = replace(target, stop_ids=target.stop_ids | extra)
        decoder = replace(decoder, target=target)
        try:
            session = decoder.open_target()
        except CacheError as error:
            note(f"decoding plainly: {error}")
            decoder = replace(decoder, drafting=decoder.drafting.with_options(method="plain"))
            session = decoder.open_target()
        layers, is_quantized = session.layers, decoder.cache.kv_bits is not None
        is_forgetful = forgets(layers)
        if is_quantized:
            _require_quantizable(decoder)
        # The rings of a batch keep no first positions, as those of --max-kv-size do.
        keeps = any(isinstance(c, RotatingKVCache) and c.keep for c in leaves_of(layers))
        merges = all(hasattr(layer, "merge") for layer in layers)
        folder, draft = cast("Path", target.folder), decoder.draft
        library = _library_tokenizer(folder, chat_template, trust_remote_code=trust_remote_code)
        default = library if use_default_chat_template else None
        prompts = Prompts(
            tokenizer=target.tokenizer,
            template=_template(folder, chat_template or None, default),
            draft=(draft.template, draft.tokenizer) if draft and draft.template else None,
            library=library,
            form=AnswerForm.of(library),
            marks_all=is_forgetful,
        )
        _prepare_grammars(decoder)
        return cls(
            decoder=decoder,
            prompts=prompts,
            context_length=session.context_length,
            forgets=is_forgetful,
            is_batchable=merges and not (is_quantized or keeps),
            fill_in_ends=target.stop_ids | fill_in_ends(target.tokenizer),
        )


def _library_tokenizer(folder: Path, chat_template: str, *, trust_remote_code: bool) -> Any:
    """mlx-lm's tokenizer of the target, with the template that was asked for."""
    given: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if chat_template:
        given["chat_template"] = chat_template
    return load_tokenizer(folder, given, eos_token_ids=read_config(folder).get("eos_token_id"))


def _template(folder: Path, given: str | None, default: Any) -> ChatTemplate | None:
    """The chat template: what was given, the model's own, or that of a tokenizer's class."""
    template = find_template(folder, given)
    if template is None and default is not None:
        text = getattr(default, "default_chat_template", None)
        if text is None:
            raise UsageError(
                "--use-default-chat-template: this tokenizer has no default; give --chat-template"
            )
        template = find_template(folder, text)
    return template


def _prepare_grammars(decoder: Decoder) -> None:
    """Build what all grammars of a tokenizer share, while nobody's answer is being decoded.

    llguidance holds Python's lock meanwhile: 1.5 s for 151,665 ids, in which no thread goes on.
    """
    target = decoder.target
    if target.tokenizer.level is not Level.IDS_ONLY and target.stop_ids:
        decoder.constrain(Grammar.regex("a"), [])


def _require_quantizable(decoder: Decoder) -> None:
    """Raises: CacheError unless the model decodes with a quantized cache, as a pass tells."""
    cache = replace(decoder.cache, quantized_kv_start=0)
    session = replace(decoder, cache=cache).open_target()
    mx.eval(session.logits([TargetId(0)] * 3, last=1))
