"""What the scheduler's thread keeps in memory: the models that are served with a decoder for them,
and caches and outputs that later requests go on with, apart for every API key."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from time import time
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache
from mlx_lm.server import ModelDescription
from mlx_lm.utils import load_tokenizer

from tokalign.api.assemble import keep_loaded, load_decoder
from tokalign.errors import UNLIMITED, CacheError
from tokalign.names.registry import models_here, resolve_model
from tokalign.runtime.decoder import Decoder, tokens_that_stop
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.weights import read_config
from tokalign.runtime.remembered import OutputStore
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.job import NOTHING, Held, Key, Owner

DEFAULT = "default_model"
"""mlx-lm's name for what the server was started with."""


class Models:
    """The models that are loaded, in the place of mlx-lm's `ModelProvider`.

    Only the scheduler's thread loads them. model_key: what is loaded; None for nothing.
    decoder: of it; its method is plain where the target's cache cannot be rewound. tokenizer:
    mlx-lm's. context_length: how many ids prompt and answer may have together. layers: how many
    the target's cache has. trims: whether they can be cut back. is_batchable: whether mlx-lm can
    decode several requests together. cli_args, processor: what mlx-lm reads.
    """

    decoder: Decoder
    tokenizer: Any
    context_length: int
    layers: int
    trims: bool
    is_batchable: bool
    processor = None  # images are not served

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        self.cli_args, self._note = settings, note
        self.model_key: Key | None = None

    def key(self, asked: ModelDescription) -> Key:
        """What a request asks for, with the server's own models in the place of their aliases."""
        served = self.cli_args
        own = asked.model in (DEFAULT, served.model)
        return (
            served.model if own else asked.model,
            served.adapter_path if own and asked.adapter is None else asked.adapter,
            served.draft_model if asked.draft == DEFAULT else asked.draft or None,
        )

    def require_served(self, asked: ModelDescription) -> None:
        """Raises: Refusal if a request names a model that the server was not started with."""
        served = self.cli_args
        if served.allow_model_switching:
            if asked.model == DEFAULT and served.model is None:
                raise Refusal(404, "this server has no model of its own: name one", code="no_model")
            return
        for kind, name, own in (
            ("model", asked.model, served.model),
            ("draft model", asked.draft, served.draft_model),
            ("adapter", asked.adapter or DEFAULT, served.adapter_path),
        ):
            if name not in (DEFAULT, own):
                there = "there is none here" if own is None else f"this server has {own!r}"
                raise Refusal(
                    404,
                    f"the {kind} {name!r} is not served: {there}; others can be loaded if it is "
                    "started with --allow-model-switching",
                    code="model_not_found",
                )

    def require(self, key: Key) -> None:
        """Load these models unless they are loaded. Raises: as `load_decoder`."""
        if self.model_key == key:
            return
        model, adapter, draft = key
        assert model is not None
        for name in filter(None, (model, draft)):
            resolve_model(name)  # a wrong name leaves in its place what is loaded
        self.reset()
        served = self.cli_args
        decoder = load_decoder(
            model,
            draft,
            served.drafting,
            dtype=served.dtype,
            adapter=None if adapter is None else Path(adapter),
            trust_remote_code=served.trust_remote_code,
            cache=served.cache,
            background=True,
            note=self._note,
        )
        self.tokenizer = self._tokenizer_for(decoder)
        ends = frozenset(self.tokenizer.eos_token_ids)
        decoder = replace(decoder, target=replace(decoder.target, stop_ids=ends))
        try:
            session = decoder.open_target()
        except CacheError as error:
            self._note(f"decoding plainly: {error}")
            decoder = replace(decoder, drafting=decoder.drafting.with_options(method="plain"))
            session = decoder.open_target()
        self.decoder, self.context_length = decoder, session.context_length
        self.layers, self.trims = len(session.layers), can_trim_prompt_cache(session.layers)
        # A batch computes rows of several texts together, which --exact may not allow.
        alone = served.cache.kv_bits is not None or decoder.drafting.exact_rows is not None
        self.is_batchable = not alone and all(hasattr(layer, "merge") for layer in session.layers)
        self.model_key = key
        keep_loaded()

    def load_default(self) -> None:
        """Load what the server was started with."""
        if self.cli_args.model is not None:
            self.require(self.key(ModelDescription(DEFAULT, DEFAULT, None)))

    def reset(self) -> None:
        """Forget what is loaded, and give back its memory."""
        self.model_key = None
        vars(self).pop("decoder", None)
        gc.unfreeze()
        gc.collect()
        mx.clear_cache()

    def _tokenizer_for(self, decoder: Decoder) -> Any:
        """mlx-lm's tokenizer of the target, with the template and the ends that were asked for."""
        served, target = self.cli_args, decoder.target
        given: dict[str, Any] = {"trust_remote_code": served.trust_remote_code}
        if served.chat_template:
            given["chat_template"] = served.chat_template
        assert target.folder is not None
        ends = read_config(target.folder).get("eos_token_id")
        tokenizer = load_tokenizer(target.folder, given, eos_token_ids=ends)
        if served.use_default_chat_template and tokenizer.chat_template is None:
            tokenizer.chat_template = tokenizer.default_chat_template
        for token in tokens_that_stop(target.tokenizer, served.extra_eos_token):
            tokenizer.add_eos_token(str(token))
        return tokenizer

    def model_list(self) -> list[dict[str, Any]]:
        """What `/v1/models` lists: the names that a request may use as its `model`.

        Where requests may name other models, those are the ones with files on this machine.
        """
        served = self.cli_args
        names = [] if served.model is None else [served.model]
        if served.allow_model_switching:
            names += [name for name in models_here() if name not in names]
        return [{**_LISTED, "id": name, "display_name": name} for name in names]


_STARTED = int(time())
_LISTED = {
    "object": "model",
    "owned_by": "tokalign",
    "created": _STARTED,
    "type": "model",
    "created_at": datetime.fromtimestamp(_STARTED, UTC).isoformat(),
}
"""A model as OpenAI's clients want it, and as Anthropic's do."""


# -- what later requests go on with ----------------------------------------------------------------

_MOST_STORES, _MOST_IDS = 16, 1 << 15
"""Output stores kept, and ids in each: about 17 MB, and 22 MB for what the target found likely."""


class Contexts:
    """Caches of both models by the target's ids, in one of mlx-lm's prompt caches.

    An entry has the target's layers and then the draft's, as in mlx-lm and in the Python API.
    outputs: gives the store of an owner's answers so far.
    """

    def __init__(self, *, size: int, most_bytes: int | None) -> None:
        self._size = size
        self._most_bytes = UNLIMITED if most_bytes is None else most_bytes
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._caches = LRUPromptCache(self._size, self._most_bytes)
        self.outputs = lru_cache(_MOST_STORES)(_new_outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return int(self._caches.nbytes)

    def fetch(self, owner: Owner, ids: Sequence[int], *, layers: int) -> Held:
        """A copy of the caches that share the most with `ids`, trimmed to what they share.

        At least one id is left for the target to read. layers: how many the target has. The draft's
        are trimmed as much, and may hold less or more than what is shared.
        """
        ids = list(ids)
        found, rest = self._caches.fetch_nearest_cache(owner, ids)
        if found is None or not (rest or can_trim_prompt_cache(found)):
            return NOTHING
        if not rest:
            trim_prompt_cache(found, 1)
            rest = ids[-1:]
        return Held(found[:layers], ids[: len(ids) - len(rest)], found[layers:])

    def keep(self, owner: Owner, held: Held, kind: str = "assistant") -> None:
        """Keep caches. kind: what their end is, by which mlx-lm chooses what it drops first."""
        if held.layers and held.ids:
            trims = bool(held.draft) and can_trim_prompt_cache(list(held.draft))
            both = [*held.layers, *(held.draft if trims else ())]
            _compact(both)
            self._caches.insert_cache(owner, list(held.ids), both, cache_type=kind)

    def leave_room(self, active_bytes: int) -> None:
        """Drop what exceeds the bound together with the caches that are in use."""
        self._caches.trim_to(n_bytes=self._most_bytes - active_bytes)


def _new_outputs(_owner: Owner) -> OutputStore:
    return OutputStore(most_ids=_MOST_IDS)


def _compact(layers: Sequence[Any]) -> None:
    """Have a cache take no more memory than what it holds.

    A cache has room for up to 255 positions more. One that was taken out of a batch is computed
    when it is read, and until then keeps the arrays of the whole batch alive.
    """
    leaves = list(leaves_of(layers))
    for layer in leaves:
        if type(layer) is KVCache and layer.keys is not None:
            layer.keys = mx.contiguous(layer.keys[..., : layer.offset, :])
            layer.values = mx.contiguous(layer.values[..., : layer.offset, :])
    mx.eval([layer.state for layer in leaves])
