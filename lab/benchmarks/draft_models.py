"""A draft model with `exact` that drafts for many texts, as the benchmarks need one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.benchmarks.remembered_target import Text
from tokalign.assemble import load_models, pair_tables
from tokalign.runtime.decoder import LanguageModel, Prompt, make_model_drafter
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.weights import vocabulary_size, weight_bytes
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.vocabulary import DraftId, TargetId


@dataclass(frozen=True)
class DraftModels:
    """Makes drafters, each for one text of the target."""

    target: LanguageModel[TargetId]
    model: LanguageModel[DraftId]
    pair: Pair
    drafting: Drafting

    @classmethod
    def load(
        cls,
        target: LanguageModel[TargetId],
        name: str,
        num_draft_tokens: int,
        alternatives: int = DEFAULT_ALTERNATIVES,
    ) -> DraftModels:
        """Load the model, and the pair's tables."""
        model: Any
        [model] = load_models([name], dtype="float32")
        pair = Pair(target.tokenizer, model.tokenizer)
        drafting = Drafting(
            method="draft",
            translation="exact",
            num_draft_tokens=num_draft_tokens,
            alternatives=alternatives,
            alignment=pair_tables(pair.target, pair.draft),
        )
        return cls(target, model, pair, drafting)

    @property
    def pass_bytes(self) -> float:
        """What a pass reads, in passes of the target."""
        return float(weight_bytes(self.model.model) / weight_bytes(self.target.model))

    def drafter(self, text: Text) -> NeuralDrafter:
        """A drafter for one text, which predicts what its target draws."""
        found = make_model_drafter(
            self.drafting,
            self.pair,
            Prompt(target=text.ids[: text.given]),
            DraftModelSession(self.model.model),
            text.sampler.draft_sampler(vocabulary_size(self.target.model)),
        )
        assert isinstance(found, NeuralDrafter)
        return found
