"""A decoder: models, tables and options of a run, from which requests get their drafters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import UsageError, shown
from tokalign.runtime.batch import Batch, OwnPasses, SharedPasses
from tokalign.runtime.chat import (
    ChatTemplate,
    Message,
    Prompt,
    Render,
    as_messages,
    encode_chat,
    encode_prompt,
    find_template,
    plain_text,
)
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.drafting import Drafting, make_drafter, make_model_drafter
from tokalign.runtime.grammar import Constraint, Grammar, constrain
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.batch_split import way_to_share
from tokalign.runtime.mlx.context_files import ContextFiles
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.mlx.weights import ends_of_mlx_lm, load_weights, vocabulary_size
from tokalign.runtime.options import ALL_ENDS, MLX_LM_ENDS, CacheOptions, DraftingOptions, as_count
from tokalign.runtime.remembered import RememberedStore
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import UNBOUNDED, Context, Drafter, Verifier
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.written_later import LATER
from tokalign.tables.finding import Note
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel(Generic[Id]):
    """A model with its tokenizer, typed by whose ids it speaks. model: an mlx-lm model. folder:
    where its files are, if known. name: its Hub repository, or else what it was loaded by.
    stop_ids: end its output."""

    model: Any
    tokenizer: Tokenizer[Id]
    folder: Path | None = None
    name: str = ""
    stop_ids: frozenset[Id] = frozenset()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        dtype: str | None = None,
        adapter: Path | None = None,
        trust_remote_code: bool = False,
        ends: str = ALL_ENDS,
    ) -> LanguageModel[Id]:
        """Load an mlx-lm folder. Raises: as `load_weights`, `read_tokenizer`, `ends_of`."""
        model, config = load_weights(
            folder, dtype=dtype, adapter=adapter, trust_remote_code=trust_remote_code
        )
        tokenizer: Tokenizer[Id] = read_tokenizer(folder, trust_remote_code=trust_remote_code)
        found = ends_of(folder, tokenizer, config, ends, trust_remote_code=trust_remote_code)
        return cls(model=model, tokenizer=tokenizer, folder=folder, stop_ids=found)

    @property
    def template(self) -> ChatTemplate | None:
        return None if self.folder is None else find_template(self.folder)

    @property
    def xtc_exempt(self) -> tuple[Id, ...]:
        """What XTC leaves alone, as in mlx-lm: line feeds and the ends of the output."""
        return (*self.tokenizer.encode("\n"), *self.stop_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Models, tables and defaults of a run, which all its requests share.

    drafter: one that was trained on the target. drafting: tables, what was learned, and the options
    of requests that bring none.
    """

    target: LanguageModel[TargetId]
    draft: LanguageModel[DraftId] | None = None
    drafter: TrainedDrafter | None = None
    drafting: Drafting
    cache: CacheOptions = field(default_factory=CacheOptions)

    @property
    def drafting_models(self) -> list[Any]:
        """The draft model's weights and the trained drafter, as far as there are any."""
        draft = None if self.draft is None else self.draft.model
        return [model for model in (draft, self.drafter) if model is not None]

    @property
    def heads(self) -> list[NDArray[np.uint32] | None]:
        """The ids that the head of each of these is shortened to, if it is."""
        of_each = self.drafting.head_ids
        return [of_each(trained=model is self.drafter) for model in self.drafting_models]

    def prompt(
        self,
        messages: str | Sequence[Message],
        *,
        use_template: bool = True,
        variables: Mapping[str, object] | None = None,
        render: Render = ChatTemplate.render_with,
    ) -> Prompt:
        """A conversation as a prompt, rendered for each model by its own chat template.

        messages: the last one is the user's, or the beginning of the answer; a text stands for one
        message. If only the target's template takes them, the draft reads the target's prompt;
        without one, or without `use_template`, both read the texts. variables, render: as in
        `encode_chat`. Raises: UsageError.
        """
        messages = as_messages(messages) if isinstance(messages, str) else messages
        target, draft = self.target, self.draft
        template = target.template if use_template else None
        if template is None:
            text = plain_text(messages)
            theirs = None if draft is None else encode_prompt(draft.tokenizer, text)
            return Prompt(target=encode_prompt(target.tokenizer, text), draft=theirs)
        ours, theirs = encode_chat(target.tokenizer, template, messages, variables, render), None
        if draft is not None and (own := draft.template) is not None:
            with suppress(UsageError):
                theirs = encode_chat(draft.tokenizer, own, messages, variables, render)
        return Prompt(target=ours, draft=theirs)

    def remember(self) -> None:
        """Have the target's top-k logits written in a while, if they are to be remembered
        (`written_later.py`)."""
        store = self.drafting.logits
        if isinstance(store, RememberedStore):
            LATER.ask(store.save)

    def open_target(
        self, layers: list[Any] | None = None, *, options: DraftingOptions | None = None
    ) -> TargetModelSession:
        """A session of the target.

        layers: a cache to go on with. options: of the request; the decoder's by default.
        Raises: CacheError if the cache cannot be rewound; IncompatibleError for a drafter with a
        model whose hidden states cannot be had.
        """
        options = options or self.drafting.options
        drafter = self.drafter if options.uses_drafter else None
        return TargetModelSession(
            self.target.model,
            self.cache,
            cache=layers,
            rewinds=options.method != "plain",
            watch=None if drafter is None else drafter.watch,
        )

    def open_batch(self) -> Batch:
        """What decodes several generations together, or in turns if they cannot share passes."""
        if way_to_share(self.target.model) is None:
            return OwnPasses()
        drafter = self.drafter if self.drafting.options.uses_drafter else None
        known = self.drafting.knowledge
        return SharedPasses(
            self.target.model,
            watch=None if drafter is None else drafter.watch,
            costs=None if known is None else known.costs,
        )

    def open_draft(
        self, layers: list[Any] | None = None, *, options: DraftingOptions | None = None
    ) -> DraftModelSession | None:
        """A session of the draft model; None if none is used. Raises: as `open_target`."""
        if self.draft is None or not (options or self.drafting.options).uses_model:
            return None
        # Drafting ends when the target's cache is full, so the draft's need not rotate.
        cache = replace(self.cache, max_kv_size=None)
        return DraftModelSession(self.draft.model, cache, cache=layers)

    def context_files(
        self, owner: str, *, most_bytes: int | None = None, note: Note
    ) -> ContextFiles:
        """The contexts on disk of one owner, of these models."""
        given: dict[str, Any] = {"owner": owner, "most_bytes": most_bytes, "note": note}
        draft = None
        if self.draft is not None and self.drafting.options.uses_model:
            options = replace(self.cache, max_kv_size=None)
            draft = ContextFiles(self.draft.model, options, **given)
        return ContextFiles(self.target.model, self.cache, draft=draft, **given)

    def begin(
        self,
        request: Request,
        *,
        target: TargetModelSession | None = None,
        draft: DraftModelSession | None = None,
        completes_stop: Callable[[TargetId], bool] | None = None,
        stops: Collection[int] = (),
    ) -> Decoding:
        """A generation of which nothing is computed yet.

        target, draft: sessions to reuse; new ones are opened otherwise. completes_stop, stops: as
        of `Limits`.
        Raises: ContextLengthError for a prompt that fills the context, if that ends the output;
        CacheError; UsageError for an empty prompt, or one with ids that a model does not have.
        """
        prompt, options = request.prompt, request.options or self.drafting.options
        if not prompt.target:
            raise UsageError("the prompt is empty; give some text")
        target = target or self.open_target(options=options)
        draft = draft or self.open_draft(options=options)
        target.require_ids("prompt", prompt.target)
        if draft is not None and prompt.draft:
            draft.require_ids("draft_prompt", prompt.draft)
        ends = request.ends_with_context
        if ends:
            target.require_room(len(prompt.target))
        drafter, verifier = self._collaborators(target, request, draft)
        limits = Limits(
            max_tokens=request.max_tokens,
            context_length=target.context_length if ends else UNBOUNDED,
            stop_ids=self.ends_of(request),
            completes_stop=completes_stop,
            target=target,
            drafts_last_id=draft is not None and options.num_draft_tokens is not None,
            stops=stops,
        )
        return Decoding(Context(prompt.target), drafter, verifier, limits=limits)

    def ends_of(self, request: Request) -> frozenset[TargetId]:
        """The ids that end a request's output."""
        return self.target.stop_ids if request.stop_ids is None else request.stop_ids

    def constrain(self, grammar: Grammar, prompt: Sequence[TargetId]) -> Constraint:
        """A grammar for the output after a prompt. Raises: as `grammar.constrain`."""
        size = vocabulary_size(self.target.model)
        return constrain(grammar, self.target.tokenizer, prompt, self.target.stop_ids, size)

    def _collaborators(
        self, target: TargetModelSession, request: Request, draft: DraftModelSession | None
    ) -> tuple[Drafter, Verifier]:
        size, sampler, constraint = target.vocabulary_size, request.sampler, request.grammar
        drafting = self.drafting.for_request(request, size)
        noise = None
        if isinstance(sampler, Sampling) and drafting.uses_logits:
            noise = sampler.noise_ahead(size)
        if isinstance(constraint, Grammar):
            constraint = self.constrain(constraint, request.prompt.target)
        verifier = TargetVerifier(target, sampler, drafting.row_store, constraint)
        branches = target.can_branch
        models = [self.translated(drafting, request, draft, trees=branches)]
        if self.drafter is not None and drafting.options.uses_drafter:
            models.append(
                with_trained(
                    self.drafter.short_session(target, drafting.head_ids(trained=True)),
                    sampler=sampler.draft_sampler,
                    length=drafting.options.num_draft_tokens,
                    branches=branches,
                )
            )
        used = [model for model in models if model is not None]
        for model in used:
            model.wait_for_others = target.wait_for_others
        drafter = make_drafter(
            drafting, *used, branches=branches, noise=noise, constraint=constraint, size=size
        )
        return drafter, verifier

    def translated(
        self,
        drafting: Drafting,
        request: Request,
        session: DraftModelSession | None,
        *,
        trees: bool = True,
    ) -> ModelDrafter | None:
        """The draft model as a drafter for one request; None if it is not used."""
        if session is None or self.draft is None or not drafting.options.uses_model:
            return None
        size = vocabulary_size(self.target.model)
        pair = Pair(self.target.tokenizer, self.draft.tokenizer, size)
        sampler = request.sampler.draft_sampler
        return make_model_drafter(drafting, pair, request.prompt, session, sampler, trees=trees)


def ends_of(
    folder: Path,
    tokenizer: Tokenizer[Id],
    config: Mapping[str, Any],
    ends: str = ALL_ENDS,
    *,
    trust_remote_code: bool = False,
) -> frozenset[Id]:
    """The ids that end an output of the model in `folder`: with "all" those of `stop_ids`, with
    "mlx-lm" those of mlx-lm, which knows no roles of special tokens. Raises: UsageError for another
    `ends`."""
    if ends == ALL_ENDS:
        return stop_ids(tokenizer, config)
    if ends != MLX_LM_ENDS:
        raise UsageError(f"ends has to be {ALL_ENDS!r} or {MLX_LM_ENDS!r}, not {shown(ends)}")
    found = ends_of_mlx_lm(folder, config, trust_remote_code=trust_remote_code)
    return cast("frozenset[Id]", found)


def stop_ids(tokenizer: Tokenizer[Id], config: Mapping[str, Any]) -> frozenset[Id]:
    """The ids that end an output: those of the tokenizer and of the model's configuration."""
    ends = config.get("eos_token_id")
    configured = {end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int}
    return cast("frozenset[Id]", tokenizer.vocabulary.roles.eos | configured)


def tokens_that_stop(tokenizer: Tokenizer[Id], names: Sequence[str]) -> frozenset[Id]:
    """The ids of tokens that are to end an output, each given by its spelling or as a number.
    Raises: UsageError."""
    vocabulary, found = tokenizer.vocabulary, set[Id]()
    for name in names:
        token = vocabulary.special_ids.get(name, vocabulary.id_of.get(name.encode()))
        if token is None and (number := as_count(name)) is not None and number < len(vocabulary):
            token = cast("Id", number)
        if token is None:
            raise UsageError(
                f"--extra-eos-token {name} is no single token of this tokenizer; give the spelling "
                "of a special token, or --stop TEXT to end before a text"
            )
        found.add(token)
    return frozenset(found)
