"""Decode every prompt under every condition with loaded models, in a fair order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol, TypeAlias

from tokalign.evaluate.comparison import drafting_of
from tokalign.evaluate.measurements import (
    Block,
    Condition,
    Measurement,
    Surroundings,
    Work,
)
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.draft_length.knowledge import Knowledge
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.rounds import Round

_WARM_UP_TOKENS = 12

MakePrompt: TypeAlias = Callable[[Decoder], Prompt]
"""Gives a prompt as the models of a decoder read it."""


class Watch(Protocol):
    """Looks at the machine while something is generated."""

    def begin(self) -> None:
        """A generation is about to begin."""
        ...

    def end(self) -> Surroundings:
        """The generation has ended: what the machine was like."""
        ...


class NoWatch:
    """Looks at nothing."""

    def begin(self) -> None:
        """See `Watch`."""

    def end(self) -> Surroundings:
        """See `Watch`."""
        return Surroundings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Loaded models and the prompts to decode with them.

    decoder: models, tables and sampling; each condition sets its own method and draft length.
    others: decoders of the same target with other draft models or with a recurrent drafter, by the
        name in `Condition.draft`.
    prompts: by the blocks in which conditions are compared.
    conditions: of every block; or, with `chosen`, those of each block.
    knowledge: gives what the draft length controller starts with where k is `auto`.

    Each condition learns for itself, from prompt to prompt.
    """

    decoder: Decoder
    others: Mapping[str, Decoder] = field(default_factory=dict)
    prompts: Mapping[Block, MakePrompt]
    conditions: Sequence[Condition]
    chosen: Callable[[Block, Condition], bool] = lambda _block, _condition: True
    max_tokens: int
    seed: int = 0
    knowledge: Callable[[Decoder], Knowledge] | None = None
    watch: Watch = field(default_factory=NoWatch)

    def schedule(self) -> Iterator[tuple[Block, Condition]]:
        """Every condition once per block, in an order that is rotated by one from block to block.

        So a machine that slows down, or another program, affects all conditions alike.
        """
        order = list(self.conditions)
        Random(self.seed).shuffle(order)
        for turn, block in enumerate(self.prompts):
            first = turn % len(order)
            for condition in order[first:] + order[:first]:
                if self.chosen(block, condition):
                    yield block, condition

    def run(
        self,
        done: Iterable[Measurement] = (),
        *,
        warmed: Callable[[Sequence[Measurement]], object] = lambda _: None,
    ) -> Iterator[Measurement]:
        """Measure what is not `done` yet, after a warm-up of a few tokens for every condition.

        warmed: is given the measurements of the warm-up before the first one that counts.
        Raises: IncompatibleError if the pair rules out a translation; as `Decoder.run`.
        """
        finished = {(m.block, m.condition) for m in done}
        pending = [pair for pair in self.schedule() if pair not in finished]
        sessions = _Sessions(self)
        warmed(self.warm_up(pending, sessions))
        drafting = {condition: self._drafting(condition) for _, condition in pending}
        for block, condition in pending:
            drafts = drafting[condition]
            yield self._measure(block, condition, drafts, sessions, self.max_tokens)

    def warm_up(
        self, pending: Iterable[tuple[Block, Condition]], sessions: _Sessions | None = None
    ) -> list[Measurement]:
        """Measure a few tokens of every condition that is pending, so that kernels are compiled."""
        sessions = sessions or _Sessions(self)
        return [
            self._measure(block, condition, self._drafting(condition), sessions, _WARM_UP_TOKENS)
            for condition, block in {c: b for b, c in pending}.items()
        ]

    def decoder_of(self, condition: Condition) -> Decoder:
        """The decoder whose draft model a condition names."""
        return self.others[condition.draft] if condition.draft else self.decoder

    def _drafting(self, condition: Condition) -> Drafting:
        decoder = self.decoder_of(condition)
        drafting = drafting_of(decoder.drafting, condition)
        if isinstance(condition.k, str):
            assert self.knowledge is not None, "auto needs opening knowledge"
            return replace(drafting, knowledge=self.knowledge(decoder))
        return replace(drafting, knowledge=None)

    def generation(
        self,
        block: Block,
        condition: Condition,
        *,
        drafting: Drafting | None = None,
        sessions: _Sessions | None = None,
        max_tokens: int | None = None,
    ) -> Generation:
        """A generation of one prompt under one condition, to be iterated over.

        drafting: with what a condition has learned; sessions: to reuse; new ones by default.
        """
        decoder, sampler = self.decoder_of(condition), self.decoder.sampler
        if block.temperature is not None:
            sampler = Sampling(temperature=block.temperature, seed=self.seed)
        drafting = drafting or self._drafting(condition)
        return Generation(
            replace(decoder, drafting=drafting, sampler=sampler),
            self.prompts[block](decoder),
            max_tokens=max_tokens or self.max_tokens,
            target_session=None if sessions is None else sessions.target(condition),
            draft_session=None if sessions is None else sessions.draft(condition),
        )

    def _measure(
        self,
        block: Block,
        condition: Condition,
        drafting: Drafting,
        sessions: _Sessions,
        max_tokens: int,
    ) -> Measurement:
        generation = self.generation(
            block, condition, drafting=drafting, sessions=sessions, max_tokens=max_tokens
        )
        reads_prompt = sessions.note_prompt(block, condition)
        self.watch.begin()
        for _ in generation:
            pass
        found = _measurement(generation, block, condition, self.watch.end())
        return replace(found, work=replace(found.work, reads_prompt=reads_prompt))


class _Sessions:
    """Sessions of the target and of each draft model, opened when they are first needed.

    Conditions with the same draft model, and those without one, share a session of the target, so
    of a block only the first of them has to read the prompt. Their order is rotated from block to
    block, so each is the first now and then, and shows what reading a prompt takes.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._targets: dict[str, TargetModelSession] = {}
        self._drafts: dict[str, DraftModelSession | None] = {}
        self._prompts: dict[str, tuple[str, int]] = {}

    def note_prompt(self, block: Block, condition: Condition) -> bool:
        """Note which prompt is now decoded. Returns: whether the sessions held another one."""
        prompt = block.prompt_set, block.number
        before = self._prompts.get(condition.draft)
        self._prompts[condition.draft] = prompt
        return before != prompt

    def target(self, condition: Condition) -> TargetModelSession:
        """The session of the target for a condition."""
        name = condition.draft
        if name not in self._targets:
            decoder = self._bench.decoder_of(condition)
            self._targets[name] = _with_all_sources(decoder).open_target()
        return self._targets[name]

    def draft(self, condition: Condition) -> DraftModelSession | None:
        """The session of a condition's draft model; None if its decoder has no draft model."""
        name = condition.draft
        if name not in self._drafts:
            self._drafts[name] = _with_all_sources(self._bench.decoder_of(condition)).open_draft()
        return self._drafts[name]


def _with_all_sources(decoder: Decoder) -> Decoder:
    return replace(decoder, drafting=replace(decoder.drafting, method="hybrid"))


def _measurement(
    generation: Generation, block: Block, condition: Condition, surroundings: Surroundings
) -> Measurement:
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
        work=work_of(generation.rounds),
        surroundings=surroundings,
    )


def work_of(rounds: Sequence[Round]) -> Work:
    """What the models computed in the rounds of one generation."""
    chains = [one.tree.chain_length for one in rounds]
    along = [
        sum(index == depth for depth, index in enumerate(one.path[:length]))
        for one, length in zip(rounds, chains, strict=True)
    ]
    first, later = rounds[:1], rounds[1:]
    return Work(
        rows=dict(sorted(Counter(one.rows for one in later).items())),
        first_tokens=sum(len(one.emitted) for one in first),
        first_seconds=sum(one.seconds for one in first),
        later_passes=sum(one.draft_passes for one in later),
        chain_proposed=sum(chains),
        chain_accepted=sum(along),
    )
