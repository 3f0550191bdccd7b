"""The models that are served: mlx-lm's provider, which here also puts a decoder together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.server import ModelDescription, ModelProvider

from tokalign.api.assemble import assemble, choose_dtype, keep_loaded
from tokalign.api.choosing import fail_early
from tokalign.errors import CacheError, MissingAssetError
from tokalign.names.registry import models_here, resolve_model
from tokalign.runtime.decoder import Decoder, LanguageModel, tokens_that_stop
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.contexts import Key
from tokalign.tokenizer.foreign import tokenizer_of_folder
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

DEFAULT = "default_model"
"""mlx-lm's name for what the server was started with."""


class Models(ModelProvider):  # type: ignore[misc]
    """The target, its tokenizer and a decoder for them, loaded in the scheduler's thread.

    decoder: of the models that are loaded. speculates: whether drafting is possible with them.
    trims: whether the target's caches can be cut back. layers: how many the target's cache has.
    """

    decoder: Decoder
    is_batchable: bool
    speculates = False
    trims = True
    layers = 0

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        super().__init__(settings)
        self._settings, self._note = settings, note

    def key(self, asked: ModelDescription) -> Key:
        """What a request asks for, with the server's own models in the place of their aliases."""
        served = self._settings
        own = asked.model in (DEFAULT, served.model)
        return (
            served.model if own else asked.model,
            served.adapter_path if own and asked.adapter is None else asked.adapter,
            served.draft_model if asked.draft == DEFAULT else asked.draft or None,
        )

    def require_served(self, asked: ModelDescription) -> None:
        """Raises: Refusal if a request names a model that the server was not started with."""
        served = self._settings
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
        if self.model_key != key:
            self._load(*key)

    def load_default(self) -> None:
        """Load what the server was started with."""
        if self._settings.model is not None:
            self.require(
                (
                    self._settings.model,
                    self._settings.adapter_path,
                    self._settings.draft_model,
                )
            )

    @property
    def context_length(self) -> int:
        """How many ids prompt and answer may have together."""
        return self.decoder.open_target().context_length

    def _load(
        self,
        model_path: str | None,
        adapter_path: str | None = None,
        draft_model_path: str | None = None,
    ) -> None:
        assert model_path is not None
        settings, note = self._settings, self._note
        found = resolve_model(model_path)
        note(found.description)
        drafts = None if draft_model_path is None else resolve_model(draft_model_path)
        fail_early(settings.drafting, with_model=drafts is not None)
        try:
            super()._load(str(found.folder), adapter_path, None)
        except (FileNotFoundError, ValueError) as error:
            raise MissingAssetError(
                f"mlx-lm cannot load the model in {found.folder} ({error}); check its files, or "
                "convert it with: mlx_lm.convert --hf-path REPOSITORY --mlx-path FOLDER"
            ) from error
        self.model_key = None  # until everything is loaded
        self.processor = None  # images are not served
        dtype = choose_dtype(settings.dtype, note=note)
        if dtype is not None:
            self.model.set_dtype(getattr(mx, dtype))
        mx.eval(self.model.state)
        draft: LanguageModel[DraftId] | None = None
        if drafts is not None:
            note(drafts.description)
            draft = LanguageModel.from_folder(
                drafts.folder, dtype=dtype, trust_remote_code=settings.trust_remote_code
            )
        self.decoder = self._assemble(found.folder, draft)
        empty = make_prompt_cache(self.model)
        self.trims, self.layers = can_trim_prompt_cache(empty), len(empty)
        self.speculates = self.decoder.drafting.method != "plain" and self._can_rewind()
        # A batch computes rows of several texts together, which --exact may not allow.
        exact = self.decoder.drafting.exact_rows is not None
        self.is_batchable = self.is_batchable and settings.cache.kv_bits is None and not exact
        self.model_key = (model_path, adapter_path, draft_model_path)
        keep_loaded()

    def _assemble(self, folder: Path, draft: LanguageModel[DraftId] | None) -> Decoder:
        settings = self._settings
        tokenizer: Tokenizer[TargetId] = tokenizer_of_folder(
            folder, trust_remote_code=settings.trust_remote_code
        )
        for token in tokens_that_stop(tokenizer, settings.extra_eos_token):
            self.tokenizer.add_eos_token(str(token))
        return assemble(
            LanguageModel(
                model=self.model,
                tokenizer=tokenizer,
                folder=folder,
                stop_ids=frozenset(self.tokenizer.eos_token_ids),
            ),
            draft,
            settings.drafting,
            cache=settings.cache,
            background=True,
            note=self._note,
        )

    def _can_rewind(self) -> bool:
        try:
            self.decoder.open_target(rewinds=True)
        except CacheError as error:
            self._note(f"decoding plainly: {error}")
            return False
        return True

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
