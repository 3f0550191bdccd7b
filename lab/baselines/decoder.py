"""A decoder that also drafts as others have published, for the study's conditions."""

from __future__ import annotations

from dataclasses import fields

from lab.baselines import PUBLISHED_METHODS, baseline, store_of
from lab.baselines.translations import PUBLISHED_TRANSLATIONS, make_translation
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.draft_length.knowledge import MAX_IDS
from tokalign.runtime.loop import TargetVerifier
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import DEFAULT_DRAFT_TOKENS
from tokalign.runtime.rounds import Drafter, Verifier
from tokalign.runtime.translation.base import Pair


class BaselineDecoder(Decoder):
    """The name of a published method may stand in the place of a translation."""

    __slots__ = ()

    @classmethod
    def like(cls, decoder: Decoder) -> BaselineDecoder:
        """The same models, tables and options."""
        return cls(**{one.name: getattr(decoder, one.name) for one in fields(Decoder)})

    def _collaborators(
        self, target: TargetModelSession, prompt: Prompt, draft: DraftModelSession | None
    ) -> tuple[Drafter, Verifier]:
        drafting = self.drafting
        name, knowledge = drafting.translation, drafting.knowledge
        if drafting.method != "draft" or name not in PUBLISHED_METHODS:
            return super()._collaborators(target, prompt, draft)
        store = store_of(name)
        verifier = TargetVerifier(target, self.sampler, store)
        costs = drafting.costs if knowledge is None else knowledge.costs.verification(MAX_IDS)
        most, branches = drafting.num_draft_tokens, target.can_branch
        return baseline(name, store, most=most, costs=costs, branches=branches), verifier

    def translated(
        self, prompt: Prompt, session: DraftModelSession | None, *, trees: bool = True
    ) -> NeuralDrafter | None:
        drafting, draft = self.drafting, self.draft
        if session is None or draft is None or drafting.translation not in PUBLISHED_TRANSLATIONS:
            return super().translated(prompt, session, trees=trees)
        pair = Pair(self.target.tokenizer, draft.tokenizer)
        return NeuralDrafter(
            session,
            make_translation(drafting.translation, pair, prompt, drafting.alignment),
            num_draft_tokens=drafting.num_draft_tokens or DEFAULT_DRAFT_TOKENS,
        )
