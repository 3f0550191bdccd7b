"""Putting a decoder together: models, tables and options in, a stream of events out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokalign.errors import UsageError
from tokalign.runtime.chat import ChatTemplate, encode_prompt, with_bos
from tokalign.runtime.context import Context
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.drafting import Drafting, make_controlled, make_drafter
from tokalign.runtime.events import Event
from tokalign.runtime.interfaces import (
    Drafter,
    DraftSampler,
    DraftSession,
    Sampler,
    Verifier,
)
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.methods import DEFAULT_DRAFT_TOKENS
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.mlx.weights import load_weights
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.draft_text import ChunkedText, DraftText
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.runtime.translation.intersection import TokenIntersection
from tokalign.runtime.translation.retokenizing import ContextWindow, Naive
from tokalign.runtime.translation.shared_ids import SameTokenizer
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model with its tokenizer.

    model: an mlx-lm model. template: None where it has none. stop_ids: what ends its output.
    """

    model: Any
    tokenizer: Tokenizer[Any]
    template: ChatTemplate | None = None
    stop_ids: frozenset[int] = frozenset()

    @classmethod
    def from_folder(cls, folder: Path, *, dtype: str | None = None) -> LanguageModel:
        """Load a folder in mlx-lm's layout. Raises: as `load_weights` and `Tokenizer.from_file`."""
        model, config = load_weights(folder, dtype=dtype)
        tokenizer: Tokenizer[Any] = Tokenizer.from_file(folder)
        return cls(
            model=model,
            tokenizer=tokenizer,
            template=ChatTemplate.from_folder(folder),
            stop_ids=tokenizer.vocabulary.roles.eos | _configured_ends(config),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is put before the target, and the same before the draft.

    draft: the draft's own rendering; None has it read the target's prompt, its special tokens by
    their roles.
    """

    target: Sequence[TargetId]
    draft: Sequence[DraftId] | None = None

    def draft_text(self, pair: Pair, *, chunked: bool = False) -> DraftText:
        """The draft's view of the prompt, ready to follow the output.

        chunked: encode each round's output on its own, as the published systems do.
        """
        kind = ChunkedText if chunked else DraftText
        if self.draft is not None:
            return kind(pair.target, pair.draft, draft_prompt=self.draft, covered=self.target)
        given = list(self.target[:1]) == [pair.target.vocabulary.roles.bos]
        opening: list[DraftId] = [] if given else with_bos(pair.draft, [])
        return kind(pair.target, pair.draft, draft_prompt=opening)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Models and options of a run. Every request gets drafters of its own: nothing leaks over."""

    target: LanguageModel
    draft: LanguageModel | None = None
    drafting: Drafting
    sampler: Sampler
    cache: CacheOptions = field(default_factory=CacheOptions)

    @property
    def seed(self) -> int | None:
        """What makes the output come out again; None where nothing is random, or not ours."""
        if isinstance(self.sampler, Sampling) and self.sampler.temperature > 0:
            return self.sampler.seed
        return None

    def prompt(self, text: str, *, system: str | None = None, use_template: bool = True) -> Prompt:
        """A user's text as a prompt, rendered for each model by its own template.

        Where only the target has a template, the draft reads what the target reads.
        """
        template = self.target.template if use_template else None
        ours = encode_prompt(self.target.tokenizer, template, text, system=system)
        if self.draft is None or (template is not None and self.draft.template is None):
            return Prompt(target=ours)
        own = self.draft.template if template is not None else None
        return Prompt(
            target=ours, draft=encode_prompt(self.draft.tokenizer, own, text, system=system)
        )

    def open_target(self) -> TargetModelSession:
        """A session of the target. Raises: CacheError if it cannot be rewound and has to be."""
        rewinds = self.drafting.method != "plain"
        return TargetModelSession(self.target.model, self.cache, rewinds=rewinds)

    def open_draft(self) -> DraftModelSession | None:
        """A session of the draft model, where one is used. Raises: CacheError."""
        if self.draft is None or not self.drafting.uses_model:
            return None
        return DraftModelSession(self.draft.model, self.cache)

    def run(
        self,
        prompt: Prompt,
        limits: Limits,
        *,
        target: TargetModelSession | None = None,
        draft: DraftModelSession | None = None,
    ) -> tuple[Context, Iterator[Event]]:
        """A generation that has not begun yet; sessions may be handed in to be used again.

        Raises: ContextLengthError; UsageError for an empty prompt.
        """
        if not prompt.target:
            raise UsageError("the prompt is empty; give some text with --prompt")
        target = target or self.open_target()
        draft = draft or self.open_draft()
        target.require_room(len(prompt.target))
        context_length = min(limits.context_length, target.context_length)
        context = Context(prompt.target)
        drafter, verifier = self._collaborators(TargetVerifier(target, self.sampler), prompt, draft)
        limits = replace(limits, context_length=context_length)
        return context, decode(context, drafter, verifier, limits=limits)

    def _collaborators(
        self, verifier: TargetVerifier, prompt: Prompt, draft: DraftModelSession | None
    ) -> tuple[Drafter, Verifier]:
        """Drafter and verifier of one request; the gain controller is both."""
        neural = self.translated(prompt, draft, trees=verifier.can_branch)
        pace = self.drafting.pace
        if pace is None or self.drafting.method == "plain":
            return make_drafter(self.drafting, neural), verifier
        controller = make_controlled(self.drafting, pace, verifier, neural)
        return controller, controller

    def translated(
        self, prompt: Prompt, session: DraftSession | None, *, trees: bool = True
    ) -> NeuralDrafter | None:
        """The draft model as a drafter for one request. trees: whether it may propose one."""
        if session is None or self.draft is None or not self.drafting.uses_model:
            return None
        translation = make_translation(
            self.drafting.translation,
            Pair(self.target.tokenizer, self.draft.tokenizer),
            prompt,
            self.drafting.alignment,
            self.sampler.draft_sampler,
        )
        steps = self.drafting.num_draft_tokens or DEFAULT_DRAFT_TOKENS
        return NeuralDrafter(
            session,
            translation,
            num_draft_tokens=steps,
            alternatives=self.drafting.alternatives if trees else 0,
        )


def _configured_ends(config: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_id` of a model's configuration: a number, a list of them, or nothing."""
    ends = config.get("eos_token_id")
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def make_translation(
    name: str,
    pair: Pair,
    prompt: Prompt,
    alignment: Callable[[], Alignment],
    sampler: DraftSampler | None = None,
) -> Translation:
    """The translation `name` for one request. Raises: IncompatibleError if the pair bars it.

    sampler: how the draft's ids are chosen; None takes the likeliest ones, as `naive` and `context`
    always do.
    """
    kind, _, window = name.partition(":")
    if kind == "none":
        return SameTokenizer(pair, sampler)
    if kind == "naive":
        return Naive(pair, prompt.draft_text(pair, chunked=True))
    if kind == "context":
        return ContextWindow(pair, prompt.draft_text(pair, chunked=True), int(window))
    if kind == "intersection":
        table = alignment().intersection
        return TokenIntersection(pair, prompt.draft_text(pair), table, sampler)
    return ExactTranslation(pair, prompt.draft_text(pair), alignment(), sampler=sampler)
