"""A sample: one measured generation as a result publishes it, without its text.

In the place of the output's ids a sample has their digest, and at how many positions they are not
those of plain decoding. Everything that a figure needs is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import Any, Self

from lab.study.conditions import CONTROL, PLAIN, Condition, PromptBlock
from lab.study.measurements import StudyMeasurement, Surroundings, Work
from lab.study.protocol import is_disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generation.

    tokens: of the output. ids: digest of the output's ids. differing: positions at which they are
    not those of plain decoding in the same block. The other fields are of a `StudyMeasurement`.
    """

    block: PromptBlock
    condition: Condition
    prompt_tokens: int
    tokens: int
    ids: str
    differing: int
    rounds: int
    proposed: int
    accepted: int
    draft_passes: int
    tokens_per_second: float
    host_ms: float
    finish_reason: str
    sources: Mapping[str, int]
    work: Work
    surroundings: Surroundings

    @property
    def temperature(self) -> float:
        """The temperature of sampling; 0 is greedy decoding."""
        return self.block.temperature or 0.0

    @property
    def later_tokens(self) -> int:
        """Tokens after the first round, which are those that `tokens_per_second` counts."""
        return self.tokens - self.work.first_tokens

    @property
    def later_rounds(self) -> int:
        """Rounds after the first one."""
        return sum(self.work.rows.values())

    @property
    def later_rows(self) -> int:
        """Rows of all rounds after the first one."""
        return sum(rows * count for rows, count in self.work.rows.items())

    @property
    def drafted_trees(self) -> bool:
        """Whether any proposal was more than a chain."""
        return self.work.chain_proposed < self.proposed

    @property
    def round_seconds(self) -> float:
        """Mean time of a round after the first one; 0 where there is none that was timed."""
        if not self.tokens_per_second or not self.later_rounds:
            return 0.0
        return self.later_tokens / self.tokens_per_second / self.later_rounds

    def to_json(self) -> dict[str, Any]:
        """All fields, those of `work` with rows as text."""
        return asdict(self) | {"work": asdict(self.work) | {"rows": _as_text(self.work.rows)}}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote. Raises: KeyError, TypeError, ValueError for anything else."""
        rows = {int(m): count for m, count in saved["work"]["rows"].items()}
        return cls(
            **dict(saved)
            | {
                "block": PromptBlock(**saved["block"]),
                "condition": Condition(**saved["condition"]),
                "work": Work(**saved["work"] | {"rows": rows}),
                "surroundings": Surroundings(**saved["surroundings"]),
            }
        )


def samples_of(measurements: Iterable[StudyMeasurement]) -> list[Sample]:
    """The samples of whole blocks: those in which plain decoding and its control were measured."""
    found = list(measurements)
    plain = {m.block: m.token_ids for m in found if m.condition.is_plain}
    controlled = {m.block for m in found if m.condition.name == CONTROL}
    return [_sample(m, plain[m.block]) for m in found if m.block in plain.keys() & controlled]


def _sample(measured: StudyMeasurement, plain: Sequence[int]) -> Sample:
    pairs = zip_longest(measured.token_ids, plain)
    same = {
        name: getattr(measured, name)
        for name in Sample.__dataclass_fields__
        if name in StudyMeasurement.__dataclass_fields__
    }
    return Sample(
        **same,
        tokens=len(measured.token_ids),
        ids=sha256(repr(measured.token_ids).encode()).hexdigest()[:16],
        differing=sum(own != wanted for own, wanted in pairs),
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured in one block, by condition, and whether its control drifted."""

    block: PromptBlock
    samples: Mapping[Condition, Sample]
    disturbed: bool

    @property
    def plain(self) -> Sample:
        """Plain decoding."""
        return self.samples[Condition(PLAIN)]

    def speedup(self, condition: Condition) -> float | None:
        """Tokens per second relative to plain decoding; None where either was not timed."""
        found = self.samples.get(condition)
        if found is None or not found.tokens_per_second or not self.plain.tokens_per_second:
            return None
        return found.tokens_per_second / self.plain.tokens_per_second


def timed_greedily(condition: Condition, trials: Iterable[Trial]) -> Iterator[tuple[Sample, float]]:
    """The greedy samples of a condition that were timed, each with its speed-up."""
    for trial in trials:
        speedup = trial.speedup(condition)
        if speedup is not None and not trial.plain.temperature:
            yield trial.samples[condition], speedup


def trials(samples: Iterable[Sample]) -> list[Trial]:
    """One trial per prompt and temperature: its first attempt that was not disturbed, or the last.

    An attempt counts where every condition of the first one was measured in it.
    """
    attempts: dict[tuple[str, int, float], dict[PromptBlock, dict[Condition, Sample]]] = {}
    for one in samples:
        block = one.block
        key = block.prompt_set, block.number, one.temperature
        attempts.setdefault(key, {}).setdefault(block, {})[one.condition] = one
    return [_chosen(by_block) for by_block in attempts.values()]


def _chosen(by_block: Mapping[PromptBlock, Mapping[Condition, Sample]]) -> Trial:
    ordered = [Trial(b, by_block[b], _drifted(by_block[b])) for b in sorted(by_block, key=_attempt)]
    whole = [trial for trial in ordered if len(trial.samples) == len(ordered[0].samples)]
    return next((trial for trial in whole if not trial.disturbed), whole[-1])


def _attempt(block: PromptBlock) -> int:
    return block.repeat


def _drifted(found: Mapping[Condition, Sample]) -> bool:
    plain, control = found[Condition(PLAIN)], found[Condition(CONTROL)]
    return is_disturbed(plain.tokens_per_second, control.tokens_per_second)


def _as_text(rows: Mapping[int, int]) -> dict[str, int]:
    return {str(m): count for m, count in rows.items()}
