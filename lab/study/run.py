"""Measure a study: everything once, and disturbed blocks again.

A block is one prompt at one temperature. Plain decoding is measured twice in it; where the two
differ by more than `DRIFT`, something else had the machine, and the block is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lab.study.bench import StudyBench
from lab.study.conditions import CONTROL, PLAIN, Condition, PromptBlock
from lab.study.measurements import StudyMeasurement
from lab.study.protocol import Arm, Protocol, is_disturbed, is_measured
from tokalign.evaluate.bench import MakePrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The protocol, and a bench for it; the prompts of the bench have `repeat` 1."""

    protocol: Protocol
    arms: Sequence[Arm]
    bench: StudyBench

    def run(
        self,
        done: Iterable[StudyMeasurement] = (),
        *,
        told: Callable[[int, float], object] = lambda _generations, _seconds: None,
    ) -> Iterator[StudyMeasurement]:
        """Measure what is not `done` yet; equal `done` gives an equal schedule.

        told: is given, at the beginning of each attempt, how many generations it still has and
        about how many seconds they take. Raises: as `StudyBench.run`.
        """
        found = list(done)
        for attempt in range(1, self.protocol.attempts + 1):
            bench = self._attempt(attempt, found)
            pending = bench.pending(found)
            if not pending:
                continue
            for one in bench.run(found, warmed=partial(self._tell, told, pending)):
                found.append(one)
                yield one

    def _tell(
        self,
        told: Callable[[int, float], object],
        pending: Sequence[tuple[PromptBlock, Condition]],
        warm: Sequence[StudyMeasurement],
    ) -> None:
        told(len(pending), expected_seconds(warm, pending, self.protocol))

    def estimate(self, done: Iterable[StudyMeasurement] = ()) -> float:
        """About how many seconds the first attempt still takes, after a warm-up of its own."""
        bench, pending = self._attempt(1, ()), self.pending(done)
        return expected_seconds(bench.warm_up(pending), pending, self.protocol)

    def pending(self, done: Iterable[StudyMeasurement] = ()) -> list[tuple[PromptBlock, Condition]]:
        """What the first attempt has still to measure."""
        return self._attempt(1, ()).pending(done)

    def _attempt(self, attempt: int, found: Sequence[StudyMeasurement]) -> StudyBench:
        """The bench of an attempt: all prompts, later those whose last attempt was disturbed."""
        first = self.bench.prompts
        again = first if attempt == 1 else _disturbed(first, found, attempt - 1)
        prompts: Mapping[PromptBlock, MakePrompt] = {
            replace(block, repeat=attempt): first[block] for block in again
        }
        arms = {arm.condition: arm for arm in self.arms}
        return replace(
            self.bench,
            prompts=prompts,
            conditions=list(arms),
            chosen=lambda block, condition: is_measured(arms[condition], block, self.protocol),
        )


def _disturbed(
    blocks: Iterable[PromptBlock], found: Sequence[StudyMeasurement], attempt: int
) -> list[PromptBlock]:
    """Blocks that have an attempt of this number, and it was disturbed."""
    speed = {(m.block, m.condition.name): m.tokens_per_second for m in found}
    tried = [(block, replace(block, repeat=attempt)) for block in blocks]
    return [
        block
        for block, one in tried
        if is_disturbed(speed.get((one, PLAIN), 0.0), speed.get((one, CONTROL), 0.0))
    ]


def expected_seconds(
    warm: Sequence[StudyMeasurement],
    pending: Iterable[tuple[PromptBlock, Condition]],
    protocol: Protocol,
) -> float:
    """How long measuring will take, from the speed of each condition in the warm-up.

    warm: measurements of the warm-up, one per condition. pending: what is to be measured.
    The first round of the warm-up reads a prompt of its set; it stands for all of them. A condition
    without a speed counts as plain decoding. Outputs that end early make it take less.
    """
    speeds = {m.condition: m.tokens_per_second for m in warm if m.tokens_per_second}
    firsts = {m.condition: m.work.first_seconds for m in warm}
    usual = next((m.tokens_per_second for m in warm if m.condition.is_plain), 0.0)
    usual = usual or min(speeds.values(), default=1.0)
    slowest = max(firsts.values(), default=0.0)
    return sum(
        firsts.get(condition, slowest) + protocol.max_tokens / speeds.get(condition, usual)
        for _, condition in pending
    )
