"""A decoder that also drafts as others have published, for the study's conditions."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lab.baselines import PUBLISHED_METHODS, baseline, store_of
from lab.baselines.translations import PUBLISHED_TRANSLATIONS, make_translation
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.costs import MAX_IDS, Costs
from tokalign.runtime.draft.neural import ModelDrafter, NeuralDrafter
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.loop import TargetVerifier
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS, DraftingOptions
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Drafter, Verifier
from tokalign.runtime.translation.base import Pair


class BaselineOptions(DraftingOptions):
    """The name of a published method may stand in the place of a translation."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Nothing is checked: other names are right here."""


class BaselineDecoder(Decoder):
    """Drafts by `BaselineOptions`, too."""

    __slots__ = ()

    @classmethod
    def like(cls, decoder: Decoder) -> BaselineDecoder:
        """The same models, tables and options."""
        options = BaselineOptions(**_fields(decoder.drafting.options))
        drafting = replace(decoder.drafting, options=options)
        return cls(**_fields(decoder) | {"drafting": drafting})

    def _collaborators(
        self, target: TargetModelSession, request: Request, draft: DraftModelSession | None
    ) -> tuple[Drafter, Verifier]:
        drafting = self.drafting.under(request.options)
        options, knowledge = drafting.options, drafting.knowledge
        name = options.translation
        if options.method != "draft" or name not in PUBLISHED_METHODS:
            return super()._collaborators(target, request, draft)
        store = store_of(name)
        verifier = TargetVerifier(target, request.sampler, store)
        costs = drafting.costs
        if knowledge is not None:
            costs = Costs(rows=knowledge.costs.by_proposed(MAX_IDS))
        most, branches = options.num_draft_tokens, target.can_branch
        return baseline(name, store, most=most, costs=costs, branches=branches), verifier

    def translated(
        self,
        drafting: Drafting,
        request: Request,
        session: DraftModelSession | None,
        *,
        trees: bool = True,
    ) -> ModelDrafter | None:
        options, draft = drafting.options, self.draft
        name = options.translation
        if session is None or draft is None or name not in PUBLISHED_TRANSLATIONS:
            return super().translated(drafting, request, session, trees=trees)
        pair = Pair(self.target.tokenizer, draft.tokenizer)
        return NeuralDrafter(
            session,
            make_translation(name, pair, request.prompt, drafting.alignment),
            num_draft_tokens=options.num_draft_tokens or DEFAULT_DRAFT_TOKENS,
        )


def _fields(of: Any) -> dict[str, Any]:
    return {one.name: getattr(of, one.name) for one in fields(of)}
