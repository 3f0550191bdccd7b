"""Decode every prompt under every condition with loaded models, in a fair order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, TypeAlias

from tokalign.evaluate.comparison import Condition, Measurement, PromptBlock, drafting_of
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampler, Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.request import Request

WARM_UP_TOKENS = 12

MakePrompt: TypeAlias = Callable[[Decoder], Prompt]
"""Gives a prompt as the models of a decoder read it."""


class Sessions(NamedTuple):
    """Sessions that all conditions share, so only the first condition of a block reads the prompt.
    The order is rotated from block to block, so each condition is the first now and then."""

    target: TargetModelSession
    draft: DraftModelSession | None

    @classmethod
    def of(cls, decoder: Decoder) -> Sessions:
        """Sessions for every method of a decoder."""
        options = replace(decoder.drafting.options, method="hybrid")
        return cls(decoder.open_target(options=options), decoder.open_draft(options=options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Loaded models and the prompts to decode with them.

    decoder: models and tables; each condition sets its own method and draft length, and
    learns for itself, from prompt to prompt. knowledge: what the controller begins with if k is
    `auto`.
    """

    decoder: Decoder
    prompts: Mapping[PromptBlock, MakePrompt]
    conditions: Sequence[Condition]
    max_tokens: int
    sampler: Sampler = Sampling()  # noqa: RUF009  # it is frozen
    seed: int = 0
    knowledge: Callable[[Decoder], Knowledge] | None = None

    def schedule(self) -> Iterator[tuple[PromptBlock, Condition]]:
        """Every condition once per block, in an order that is rotated by one from block to block.
        So a machine that slows down, or another program, affects all conditions alike."""
        order = list(self.conditions)
        Random(self.seed).shuffle(order)
        for turn, block in enumerate(self.prompts):
            first = turn % len(order)
            for condition in order[first:] + order[:first]:
                yield block, condition

    def run(self) -> Iterator[Measurement]:
        """Measure everything, after a warm-up of a few tokens for every condition. Raises:
        IncompatibleError if the pair rules out a translation; as `Decoder.begin`."""
        schedule, sessions = list(self.schedule()), Sessions.of(self.decoder)
        for make in self.prompts.values():  # else refused after the others are measured
            sessions.target.require_room(len(make(self.decoder).target))
        short = replace(self, max_tokens=WARM_UP_TOKENS)
        for condition, block in {c: b for b, c in schedule}.items():  # so that kernels are compiled
            short.measured(block, condition, short.drafting(self.decoder, condition), sessions)
        drafting = {c: self.drafting(self.decoder, c) for _, c in schedule}
        for block, condition in schedule:
            yield self.measured(block, condition, drafting[condition], sessions)

    def measured(
        self, block: PromptBlock, condition: Condition, drafting: Drafting, sessions: Sessions
    ) -> Measurement:
        """One generation. drafting: with what the condition has learned."""
        request = Request(
            self.prompts[block](self.decoder), max_tokens=self.max_tokens, sampler=self.sampler
        )
        generation = Generation(
            replace(self.decoder, drafting=drafting),
            request,
            target_session=sessions.target,
            draft_session=sessions.draft,
        )
        return measurement(generation, block, condition)

    def drafting(self, decoder: Decoder, condition: Condition) -> Drafting:
        """How a condition drafts with this decoder, with nothing learned yet."""
        drafting = drafting_of(decoder.drafting, condition)
        if isinstance(condition.k, str):
            assert self.knowledge is not None, "auto needs opening knowledge"
            return replace(drafting, knowledge=self.knowledge(decoder))
        return drafting


def measurement(generation: Generation, block: PromptBlock, condition: Condition) -> Measurement:
    """Run a generation to its end, and say what was measured."""
    for _ in generation:
        pass
    counted = generation.statistics
    round_ms, pass_ms, drafting_ms = counted.ms_per_round
    return Measurement(
        block=block,
        condition=condition,
        token_ids=tuple(generation.context.emitted),
        prompt_tokens=counted.prompt_tokens,
        rounds=counted.rounds,
        proposed=counted.num_draft_tokens,
        accepted=counted.num_accepted_draft_tokens,
        draft_passes=counted.draft_passes,
        tokens_per_second=counted.tokens_per_second,
        host_ms=counted.host_ms_per_round["p50"],
        round_ms=round_ms,
        pass_ms=pass_ms,
        drafting_ms=drafting_ms,
    )
