"""Conditions against plain decoding, out of measurements: what `tokalign bench` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median, quantiles

from tokalign.cost.model import BreakEven, fit_break_even
from tokalign.evaluate.measurements import PLAIN, Block, Condition, Measurement


@dataclass(frozen=True, slots=True)
class Point:
    """One prompt under one condition: acceptance, and speed against plain decoding of it.

    Of a prompt that was repeated, the median of both; each repeat has a plain decoding of its own.
    """

    prompt_set: str
    number: int
    acceptance: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One condition over the prompts of a set, or over all of them.

    Token figures are of all tokens together; `tokens_per_second`, `host_ms` and `speedup` are
    medians over prompts, `low` and `high` the quartiles of the speed-up. points: one per prompt;
    those that ended in their first round have no speed and no point.
    ids_that_differ: tokens that are not plain decoding's, over all prompts.
    break_even: None for plain decoding, for `auto` (it drafts where that pays, so that its speed
    says little about acceptance), and for too few prompts.
    """

    condition: Condition
    prompts: int
    tokens: int
    acceptance: float
    tokens_per_round: float
    draft_passes_per_round: float
    tokens_per_second: float
    host_ms: float
    speedup: float
    low: float
    high: float
    ids_that_differ: int
    points: tuple[Point, ...]
    break_even: BreakEven | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of every set of prompts by its name, and over all of them."""

    sets: Mapping[str, Sequence[Row]]
    overall: Sequence[Row]

    @property
    def ids_that_differ(self) -> int:
        return sum(row.ids_that_differ for row in self.overall)


def compare(measurements: Iterable[Measurement]) -> Comparison:
    """Rows in the order in which conditions and sets first occur, plain decoding first.

    Measurements of prompts whose plain decoding is not there are left out.
    """
    found = list(measurements)
    plain = {m.block: m for m in found if m.condition.name == PLAIN}
    found = [m for m in found if m.block in plain]
    conditions = sorted({m.condition for m in found}, key=_order)
    sets = dict.fromkeys(m.block.prompt_set for m in found)

    def rows(of: str | None) -> list[Row]:
        chosen = [m for m in found if of in (None, m.block.prompt_set)]
        return [_row(c, [m for m in chosen if m.condition == c], plain) for c in conditions]

    return Comparison({name: rows(name) for name in sets}, rows(None))


_ORDER = (
    PLAIN, "none", "naive", "context", "intersection", "exact",
    "dictionary", "copy", "prompt-lookup", "hybrid-fixed", "hybrid",
)  # fmt: skip


def _order(condition: Condition) -> tuple[int, str, int]:
    """Published baselines first; k as a number, `auto` last."""
    kind = condition.name.partition(":")[0]
    place = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
    return place, condition.name, condition.k if isinstance(condition.k, int) else 1 << 30


def _row(
    condition: Condition, measured: Sequence[Measurement], plain: Mapping[Block, Measurement]
) -> Row:
    proposed = sum(m.proposed for m in measured)
    rounds, tokens = sum(m.rounds for m in measured), sum(len(m.token_ids) for m in measured)
    points = _points(measured, plain)
    speedups = [point.speedup for point in points]
    low, middle, high = _quartiles(speedups)
    return Row(
        condition=condition,
        prompts=len({_prompt(m.block) for m in measured}),
        tokens=tokens,
        acceptance=_ratio(sum(m.accepted for m in measured), proposed),
        tokens_per_round=_ratio(tokens, rounds),
        draft_passes_per_round=_ratio(sum(m.draft_passes for m in measured), rounds),
        tokens_per_second=_median([m.tokens_per_second for m in measured if m.tokens_per_second]),
        host_ms=_median([m.host_ms for m in measured if m.tokens_per_second]),
        speedup=middle,
        low=low,
        high=high,
        ids_that_differ=sum(_differing(m, plain[m.block]) for m in measured),
        points=tuple(points),
        break_even=fit_break_even([point.acceptance for point in points], speedups)
        if isinstance(condition.k, int)
        else None,
    )


def _points(measured: Sequence[Measurement], plain: Mapping[Block, Measurement]) -> list[Point]:
    repeats: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for m in measured:
        usual = plain[m.block].tokens_per_second
        if m.tokens_per_second and usual:
            found = repeats.setdefault(_prompt(m.block), [])
            found.append((_ratio(m.accepted, m.proposed), m.tokens_per_second / usual))
    return [
        Point(*prompt, *(median(values) for values in zip(*found, strict=True)))
        for prompt, found in repeats.items()
    ]


def _prompt(block: Block) -> tuple[str, int]:
    return block.prompt_set, block.number


def _differing(measured: Measurement, plain: Measurement) -> int:
    pairs = zip_longest(measured.token_ids, plain.token_ids)
    return sum(1 for own, wanted in pairs if own != wanted)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return (values[0],) * 3 if values else (0.0, 0.0, 0.0)
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
