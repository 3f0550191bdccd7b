"""A bench of several draft models of one target, which also looks at the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from lab.study.conditions import Condition, PromptBlock
from lab.study.measurements import StudyMeasurement, work_of
from lab.study.watch import MachineWatch
from tokalign.evaluate import comparison
from tokalign.evaluate.bench import WARM_UP_TOKENS, Bench, MakePrompt, Sessions, measurement
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBench(Bench):
    """A `Bench` whose conditions may name their draft model, and blocks their temperature.

    others: decoders of the same target with other draft models or with a recurrent drafter, by the
        name in `Condition.draft`. Conditions with the same draft model share sessions.
    chosen: whether a condition is one of a block's.
    """

    prompts: Mapping[PromptBlock, MakePrompt]  # type: ignore[assignment]
    conditions: Sequence[Condition]
    others: Mapping[str, Decoder] = field(default_factory=dict)
    chosen: Callable[[PromptBlock, Condition], bool] = lambda _block, _condition: True
    watch: MachineWatch = field(default_factory=MachineWatch)

    def schedule(self) -> Iterator[tuple[PromptBlock, Condition]]:
        scheduled = cast("Iterator[tuple[PromptBlock, Condition]]", Bench.schedule(self))
        yield from (pair for pair in scheduled if self.chosen(*pair))

    def pending(self, done: Iterable[StudyMeasurement]) -> list[tuple[PromptBlock, Condition]]:
        """What of the schedule is not `done` yet."""
        finished = {(m.block, m.condition) for m in done}
        return [pair for pair in self.schedule() if pair not in finished]

    def run(
        self,
        done: Iterable[StudyMeasurement] = (),
        *,
        warmed: Callable[[Sequence[StudyMeasurement]], object] = lambda _: None,
    ) -> Iterator[StudyMeasurement]:
        """See `Bench`. warmed: is given what the warm-up measured before anything else counts."""
        pending, sessions = self.pending(done), _Sessions(self)
        warmed(self.warm_up(pending, sessions))
        drafting = {c: self.drafting(self.decoder_of(c), c) for _, c in pending}
        for block, condition in pending:
            generation = self.generation(block, condition, drafting[condition], sessions)
            yield self._measured(generation, block, condition, sessions)

    def warm_up(
        self, pending: Iterable[tuple[PromptBlock, Condition]], sessions: _Sessions | None = None
    ) -> list[StudyMeasurement]:
        """Measure a few tokens of every condition that is pending, so that kernels are compiled."""
        sessions, short = sessions or _Sessions(self), replace(self, max_tokens=WARM_UP_TOKENS)
        return [
            self._measured(
                short.generation(block, condition, None, sessions), block, condition, sessions
            )
            for condition, block in {c: b for b, c in pending}.items()
        ]

    def decoder_of(self, condition: Condition) -> Decoder:
        """The decoder whose draft model a condition names."""
        return self.others[condition.draft] if condition.draft else self.decoder

    def drafting(self, decoder: Decoder, condition: comparison.Condition) -> Drafting:
        drafting = Bench.drafting(self, decoder, condition)
        is_chain = isinstance(condition, Condition) and condition.chain
        return drafting.with_options(alternatives=0) if is_chain else drafting

    def generation(
        self,
        block: PromptBlock,
        condition: Condition,
        drafting: Drafting | None = None,
        sessions: _Sessions | None = None,
    ) -> Generation:
        """A generation of one prompt under one condition, to be iterated over.

        drafting: with what a condition has learned; sessions: to reuse; new ones by default.
        """
        decoder, sampler = self.decoder_of(condition), self.sampler
        if block.temperature is not None:
            sampler = Sampling(temperature=block.temperature, seed=self.seed)
        drafting = drafting or self.drafting(decoder, condition)
        shared = None if sessions is None else sessions.of(condition)
        return Generation(
            replace(decoder, drafting=drafting),
            Request(self.prompts[block](decoder), max_tokens=self.max_tokens, sampler=sampler),
            target_session=None if shared is None else shared.target,
            draft_session=None if shared is None else shared.draft,
        )

    def _measured(
        self, generation: Generation, block: PromptBlock, condition: Condition, sessions: _Sessions
    ) -> StudyMeasurement:
        reads_prompt = sessions.note_prompt(block, condition)
        self.watch.begin()
        found, counted = measurement(generation, block, condition), generation.statistics
        return StudyMeasurement.of(
            found,
            finish_reason=counted.finish_reason or "",
            sources={name: counts["accepted"] for name, counts in counted.per_source.items()},
            work=replace(work_of(generation.rounds), reads_prompt=reads_prompt),
            surroundings=self.watch.end(),
        )


class _Sessions:
    """Sessions of the target and of each draft model, opened when they are first needed."""

    def __init__(self, bench: StudyBench) -> None:
        self._bench = bench
        self._open: dict[str, Sessions] = {}
        self._prompts: dict[str, tuple[str, int]] = {}

    def note_prompt(self, block: PromptBlock, condition: Condition) -> bool:
        """Note which prompt is now decoded. Returns: whether the sessions held another one."""
        prompt = block.prompt_set, block.number
        before = self._prompts.get(condition.draft)
        self._prompts[condition.draft] = prompt
        return before != prompt

    def of(self, condition: Condition) -> Sessions:
        """Those for a condition."""
        if condition.draft not in self._open:
            self._open[condition.draft] = Sessions.of(self._bench.decoder_of(condition))
        return self._open[condition.draft]
