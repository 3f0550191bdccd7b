"""The models that are served, with a decoder for them. Only the scheduler's thread loads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any, cast

from mlx_lm.utils import load_tokenizer

from tokalign.api.assemble import keep_loaded, let_go, load_decoder, require_quantizable
from tokalign.conversation.answer_form import AnswerForm
from tokalign.conversation.prompts import Prompts, fill_in_ends
from tokalign.errors import CacheError, UsageError, shown
from tokalign.names.registry import models_here, resolve_model
from tokalign.runtime.batch import Batch
from tokalign.runtime.chat import ChatTemplate, find_template
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.layers import forgets
from tokalign.runtime.mlx.weights import read_config, require_adapter, weight_bytes
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.serve import Settings
from tokalign.serve.admission import Refusal
from tokalign.serve.job import Key
from tokalign.serve.request import DEFAULT, ModelNames
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """The models that are loaded, and what requests have to know about them.

    decoder: its method is plain where the target's cache cannot be rewound. context_length: most
    ids of prompt and answer together. nbytes: of all weights. forgets: whether the target's cache
    cannot be cut back to every prefix. samples: caches with an id in them, as of
    `Answering.caches`, that tell how large others get; own: the same of a trained drafter. batch:
    decodes all requests that have read their prompts. fill_in_ends: as of `prompts.fill_in_ends`.
    files: contexts on disk, by the API key of their owner.
    """

    decoder: Decoder
    prompts: Prompts
    context_length: int
    nbytes: int
    forgets: bool
    samples: tuple[list[Any], list[Any]]
    own: list[Any]
    batch: Batch
    fill_in_ends: frozenset[TargetId]
    files: dict[str, ContextFiles] = field(default_factory=dict)

    @classmethod
    def of(cls, decoder: Decoder, served: Settings, note: Callable[[str], None]) -> Loaded:
        """Raises: CacheError for a cache that cannot be quantized; UsageError."""
        target = decoder.target
        try:
            session = decoder.open_target()
        except CacheError as error:
            note(f"decoding plainly: {error}")
            decoder = replace(decoder, drafting=decoder.drafting.with_options(method="plain"))
            session = decoder.open_target()
        is_forgetful = forgets(session.layers)
        require_quantizable(decoder, Decoder.open_target)
        folder, draft = cast("Path", target.folder), decoder.draft
        drafting = decoder.open_draft()
        session.logits([TargetId(0)])  # lazy: nothing is computed, but the caches' sizes are known
        if drafting is not None:
            drafting.logits([DraftId(0)])
        own = list[Any]()
        if decoder.drafter is not None and decoder.drafting.options.uses_drafter:
            own = decoder.drafter.layers_after(session.take_taps([TargetId(0)] * 2, 0)[1])
        library = _library_tokenizer(folder, served)
        prompts = Prompts(
            tokenizer=target.tokenizer,
            template=_template(folder, served, library),
            draft=(draft.template, draft.tokenizer) if draft and draft.template else None,
            library=library,
            form=AnswerForm.of(library),
            marks_all=is_forgetful,
        )
        _prepare_grammars(decoder)
        networks = [model.model for model in (target, draft) if model is not None]
        networks += [] if decoder.drafter is None else [decoder.drafter]
        return cls(
            decoder=decoder,
            prompts=prompts,
            context_length=session.context_length,
            nbytes=sum(map(weight_bytes, networks)),
            forgets=is_forgetful,
            samples=(session.layers, [] if drafting is None else drafting.layers),
            own=own,
            batch=decoder.open_batch(),
            fill_in_ends=target.stop_ids | fill_in_ends(target.tokenizer),
        )


def _library_tokenizer(folder: Path, served: Settings) -> Any:
    """mlx-lm's tokenizer of the target, which reads the template for thoughts and calls."""
    given: dict[str, Any] = {"trust_remote_code": served.trust_remote_code}
    if served.chat_template:
        given["chat_template"] = served.chat_template
    return load_tokenizer(folder, given, eos_token_ids=read_config(folder).get("eos_token_id"))


def _template(folder: Path, served: Settings, library: Any) -> ChatTemplate | None:
    """The chat template: the server's, the model's own, or that of the tokenizer's class."""
    template = find_template(folder, served.chat_template or None)
    if template is None and served.use_default_chat_template:
        text = getattr(library, "default_chat_template", None)
        if text is None:
            raise UsageError(
                "--use-default-chat-template: this tokenizer has no default; give --chat-template"
            )
        template = find_template(folder, text)
    return template


def _prepare_grammars(decoder: Decoder) -> None:
    """Build what all grammars of a tokenizer share, while nobody's answer is being decoded.

    llguidance holds Python's lock meanwhile: 1.3 s for 151,665 ids, in which no thread goes on.
    """
    target = decoder.target
    if target.tokenizer.level is not Level.IDS_ONLY:
        with suppress(UsageError):  # where no id of the model ends a text
            decoder.constrain(Grammar.regex("a"), [])


class Models:
    """The models that requests may name, and those that are loaded now."""

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        self._settings, self._note = settings, note
        self._loaded: Loaded | None = None
        self._loaded_key: Key | None = None

    @property
    def loaded(self) -> Loaded:
        assert self._loaded is not None, "no model is loaded"
        return self._loaded

    def key(self, names: ModelNames) -> Key:
        """The models of a request, with the server's own in the place of their aliases."""
        served = self._settings
        own = names.model in (DEFAULT, served.model)
        own_adapter = served.adapter_path if own else None
        return (
            served.model if own else names.model,
            own_adapter if names.adapter == DEFAULT else names.adapter or None,
            served.draft_model if names.draft == DEFAULT else names.draft or None,
        )

    def are_loaded(self, key: Key) -> bool:
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
            ("adapter", names.adapter, served.adapter_path),
        ):
            if name not in (DEFAULT, own):
                there = "there is none here" if own is None else f"this server has {own!r}"
                raise Refusal(
                    404,
                    f"the {kind} {shown(name)} is not served: {there}; others can be loaded if it "
                    "is started with --allow-model-switching",
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
        if adapter is not None:
            require_adapter(Path(adapter))
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
            extra_eos_token=served.extra_eos_token,
            note=self._note,
        )
        self._loaded = Loaded.of(decoder, served, self._note)
        self._loaded_key = key
        keep_loaded()

    def reset(self) -> None:
        """Forget what is loaded, and give back its memory."""
        self._loaded = self._loaded_key = None
        let_go()

    def model_list(self) -> list[dict[str, Any]]:
        """What `/v1/models` lists; with `allow_model_switching` all models on this machine.

        The one that is loaded has its context's length, in vLLM's words and in others', and what
        drafts for it.
        """
        served, loaded, key = self._settings, self._loaded, self._loaded_key
        names = [] if served.model is None else [served.model]
        if served.allow_model_switching:
            names += [name for name in models_here() if name not in names]
        models = [{**_LISTED, "id": name, "display_name": name} for name in names]
        for model in models:
            if loaded is not None and key is not None and model["id"] == key[0]:
                if (length := loaded.context_length) < UNBOUNDED:
                    model |= {"context_length": length, "max_model_len": length}
                sources = sources_of(loaded.decoder, reuses=served.reuse_outputs)
                model["tokalign"] = {"sources": sources}
        return models


def sources_of(decoder: Decoder, *, reuses: bool) -> list[str]:
    """What may guess ahead in a chat, as `source` of a token names it."""
    drafting, options = decoder.drafting, decoder.drafting.options
    copies = options.method in ("copy", "hybrid")
    has_dictionary = drafting.dictionary is not None or drafting.packs is not None
    there = {
        "draft": decoder.draft is not None and options.uses_model,
        "drafter": decoder.drafter is not None and options.uses_drafter,
        "dictionary": has_dictionary and options.uses_dictionary,
        "copy": copies,
        "session": copies and reuses,
        "logits": drafting.uses_logits,
    }
    return [source for source, is_there in there.items() if is_there]


_STARTED = int(time())
_LISTED = {
    "object": "model",
    "owned_by": "tokalign",
    "created": _STARTED,
    "type": "model",
    "created_at": datetime.fromtimestamp(_STARTED, UTC).isoformat(),
}
"""A model as OpenAI's clients want it, and as Anthropic's do."""
