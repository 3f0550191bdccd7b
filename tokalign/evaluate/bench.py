"""Decode every prompt under every condition with one loaded pair, in a fair order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tokalign.evaluate.measurements import BASELINES, PLAIN, Block, Condition, Measurement
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.methods import METHODS
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.tokenizer.tokenizer import Tokenizer

_WARM_UP_TOKENS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A loaded pair and the prompts to decode with it.

    decoder: models, tables and sampling; each condition sets its own method and draft length.
    prompts: by the blocks in which conditions are compared.
    knowledge: gives what the draft length controller starts with where k is `auto`; each such
        condition learns for itself, from prompt to prompt.
    """

    decoder: Decoder
    prompts: Mapping[Block, Prompt]
    conditions: Sequence[Condition]
    max_tokens: int
    seed: int = 0
    knowledge: Callable[[], Knowledge] | None = None

    def schedule(self) -> Iterator[tuple[Block, Condition]]:
        """Every condition once per block, in an order that is rotated by one from block to block.

        So a machine that slows down, or another program, affects all conditions alike.
        """
        order = list(self.conditions)
        Random(self.seed).shuffle(order)
        for turn, block in enumerate(self.prompts):
            first = turn % len(order)
            for condition in order[first:] + order[:first]:
                yield block, condition

    def run(self, done: Iterable[Measurement] = ()) -> Iterator[Measurement]:
        """Measure what is not `done` yet, after a warm-up of a few tokens for every condition.

        Raises: IncompatibleError if the pair rules out a translation; as `Decoder.run`.
        """
        finished = {(m.block, m.condition) for m in done}
        pending = [pair for pair in self.schedule() if pair not in finished]
        with_both = replace(self.decoder, drafting=replace(self.decoder.drafting, method="hybrid"))
        sessions = with_both.open_target(), with_both.open_draft()
        for condition, block in {condition: block for block, condition in pending}.items():
            self._generate(block, self._drafting(condition), sessions, _WARM_UP_TOKENS)
        drafting = {condition: self._drafting(condition) for _, condition in pending}
        for block, condition in pending:
            found = self._generate(block, drafting[condition], sessions, self.max_tokens)
            yield _measurement(found, block, condition)

    def _drafting(self, condition: Condition) -> Drafting:
        """How a condition drafts: its name is a method, else a translation of the draft model."""
        drafting = self.decoder.drafting
        name = condition.name if condition.drafts else PLAIN
        if name in METHODS:
            drafting = replace(drafting, method=name)
        else:
            drafting = replace(drafting, method="draft", translation=condition.name)
        if isinstance(condition.k, str):
            assert self.knowledge is not None, "auto needs opening knowledge"
            return replace(drafting, num_draft_tokens=None, knowledge=self.knowledge())
        return replace(drafting, num_draft_tokens=condition.k, knowledge=None)

    def _generate(
        self,
        block: Block,
        drafting: Drafting,
        sessions: tuple[TargetModelSession, DraftModelSession | None],
        max_tokens: int,
    ) -> Generation:
        generation = Generation(
            replace(self.decoder, drafting=drafting),
            self.prompts[block],
            max_tokens=max_tokens,
            target_session=sessions[0],
            draft_session=sessions[1],
        )
        for _ in generation:
            pass
        return generation


def _measurement(generation: Generation, block: Block, condition: Condition) -> Measurement:
    found = generation.statistics
    return Measurement(
        block=block,
        condition=condition,
        token_ids=tuple(generation.context.emitted),
        prompt_tokens=found.prompt_tokens,
        rounds=found.rounds,
        proposed=found.num_draft_tokens,
        accepted=found.num_accepted_draft_tokens,
        draft_passes=found.draft_passes,
        tokens_per_second=found.tokens_per_second,
        host_ms=found.host_ms_per_round["p50"],
        finish_reason=found.finish_reason or "",
        sources={name: counts["accepted"] for name, counts in found.per_source.items()},
    )


def conditions_of(
    drafting: Drafting,
    *,
    lengths: Sequence[int | str],
    pair: tuple[Tokenizer[Any], Tokenizer[Any]] | None,
    with_drafter: bool = False,
) -> list[Condition]:
    """All conditions that can be measured: plain decoding and its control, the others by length.

    pair: the tokenizers of target and draft, None without a draft model. If both are the same,
    `none` is the only translation; else the others are measured. A dictionary is measured if there
    is one. with_drafter: whether there is a recurrent drafter, which is measured alone, too.
    """
    translations: Sequence[str] = ()
    if pair is not None:
        same = pair[0].fingerprint == pair[1].fingerprint
        translations = ("none",) if same else ("naive", "context:5", "intersection", "exact")
    dictionary = () if drafting.dictionary is None else ("dictionary",)
    drafter = ("drafter",) if with_drafter else ()
    names = (*translations, *drafter, *dictionary, "copy", "prompt-lookup", "hybrid")
    return [*BASELINES, *(Condition(name, k) for name in names for k in lengths)]
