"""The models that are served, with a decoder for them. Only the scheduler's thread loads them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import mlx.core as mx

from tokalign.api.answering import Answering
from tokalign.api.assemble import keep_loaded, load_decoder
from tokalign.names.registry import models_here, resolve_model
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Key
from tokalign.serve.request import DEFAULT, ModelNames


class Models:
    """What the server was started with, and what is loaded now."""

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        self._settings, self._note = settings, note
        self._loaded: Answering | None = None
        self._loaded_key: Key | None = None

    @property
    def loaded(self) -> Answering:
        """The models in use; there are some whenever a request is decoded."""
        assert self._loaded is not None, "no model is loaded"
        return self._loaded

    def key(self, names: ModelNames) -> Key:
        """What a request asks for, with the server's own models in the place of their aliases."""
        served = self._settings
        own = names.model in (DEFAULT, served.model)
        return (
            served.model if own else names.model,
            served.adapter_path if own and names.adapter is None else names.adapter,
            served.draft_model if names.draft == DEFAULT else names.draft or None,
        )

    def are_loaded(self, key: Key) -> bool:
        """Whether these are the models in use."""
        return self._loaded_key == key

    def require_served(self, names: ModelNames) -> None:
        """Raises: Refusal if a request names a model that the server was not started with."""
        served = self._settings
        if served.allow_model_switching:
            if names.model == DEFAULT and served.model is None:
                raise Refusal(404, "this server has no model of its own: name one", code="no_model")
            return
        for kind, name, own in (
            ("model", names.model, served.model),
            ("draft model", names.draft, served.draft_model),
            ("adapter", names.adapter or DEFAULT, served.adapter_path),
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
        """Load these models unless they are loaded. Raises: as `load_decoder`; CacheError."""
        if self.are_loaded(key):
            return
        model, adapter, draft = key
        assert model is not None
        for name in filter(None, (model, draft)):
            resolve_model(name)  # a wrong name leaves in its place what is loaded
        self.reset()
        served = self._settings
        decoder = load_decoder(
            model,
            draft,
            served.drafting,
            dtype=served.dtype,
            adapter=None if adapter is None else Path(adapter),
            trust_remote_code=served.trust_remote_code,
            cache=served.cache,
            background=True,
            ends=served.ends,
            note=self._note,
        )
        self._loaded = Answering.of(
            decoder,
            note=self._note,
            extra_eos_token=served.extra_eos_token,
            chat_template=served.chat_template,
            use_default_chat_template=served.use_default_chat_template,
            trust_remote_code=served.trust_remote_code,
        )
        self._loaded_key = key
        keep_loaded()

    def reset(self) -> None:
        """Forget what is loaded, and give back its memory."""
        self._loaded = self._loaded_key = None
        gc.unfreeze()
        gc.collect()
        mx.clear_cache()

    def model_list(self) -> list[dict[str, Any]]:
        """What `/v1/models` lists: the names that a request may use as its `model`.

        Where requests may name other models, those are the ones with files on this machine.
        """
        served = self._settings
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
