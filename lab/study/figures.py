"""The figures of a study, all of them computed from its trials.

A row is one condition over the trials of a group: a set of prompts, or all of them, at one
temperature. `lab/study/README.md` defines every figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from lab.study.break_even import BreakEven, fit_break_even
from lab.study.conditions import Condition, order_of
from lab.study.samples import Sample, Trial
from tokalign.runtime.statistics import ratio

BUCKETS = ((0.0, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, float("inf")))
"""Acceptance from the first number up to the second: Tables 6 and 8 to 10 of the Polish study."""

CONFIDENCE = 0.95
_RESAMPLES = 2000

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials that are looked at together. prompt_set: empty for all sets."""

    prompt_set: str
    temperature: float
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """The set of prompts and the temperature, in words."""
        decoding = f"T = {self.temperature:g}" if self.temperature else "greedy"
        return f"{self.prompt_set or 'all prompts'}, {decoding}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One condition over the trials of a group.

    Figures of tokens count all tokens together. chain_acceptance, tree_acceptance: accepted ids of
    the first chain over its proposed ones, and of the whole tree; equal where no tree was drafted.
    tokens_per_row: tokens of a round over rows of the target in it, first rounds left out.
    tokens_per_second: mean over prompts. speedup: mean over prompts of the ratio to plain decoding
    of the same prompt; interval: its 95 % bootstrap interval; None where nothing was timed.
    first_ms: median time to the first token, of prompts that were read; None if all were found in
    caches. joules_per_token: of prompts that were found there; None where it was not measured.
    peak_gb: the most memory held. disturbed: trials whose control drifted. outputs_that_differ:
    prompts whose output is not that of plain decoding. break_even: of acceptance of the chain
    against speed-up. buckets: mean speed-up and count by acceptance; None without a prompt.
    """

    condition: Condition
    prompts: int
    disturbed: int
    tokens: int
    chain_acceptance: float
    tree_acceptance: float
    tokens_per_round: float
    rows_per_round: float
    tokens_per_row: float
    passes_per_round: float
    tokens_per_second: float
    speedup: float | None
    interval: Interval | None
    first_ms: float | None
    host_ms: float
    joules_per_token: float | None
    peak_gb: float
    outputs_that_differ: int
    break_even: BreakEven | None
    buckets: tuple[tuple[float, int] | None, ...]


def groups_of(trials: Sequence[Trial]) -> list[Group]:
    """The rows of every set at every temperature, those of all sets together first."""
    temperatures = dict.fromkeys(t.plain.temperature for t in trials)
    found = []
    for temperature in temperatures:
        at = [trial for trial in trials if trial.plain.temperature == temperature]
        for name in ("", *dict.fromkeys(trial.block.prompt_set for trial in at)):
            chosen = [trial for trial in at if name in ("", trial.block.prompt_set)]
            conditions = {condition for trial in chosen for condition in trial.samples}
            rows = tuple(_row(c, chosen) for c in sorted(conditions, key=order_of))
            found.append(Group(prompt_set=name, temperature=temperature, rows=rows))
    return found


def _row(condition: Condition, trials: Iterable[Trial]) -> Row:
    having = [trial for trial in trials if condition in trial.samples]
    samples = [trial.samples[condition] for trial in having]
    tokens = sum(s.tokens for s in samples)
    points = points_of(condition, having)
    speedups = [speedup for _, speedup in points]
    fixed = isinstance(condition.k, int)
    return Row(
        condition=condition,
        prompts=len(samples),
        disturbed=sum(trial.disturbed for trial in having),
        tokens=tokens,
        chain_acceptance=ratio(
            sum(s.work.chain_accepted for s in samples), sum(s.work.chain_proposed for s in samples)
        ),
        tree_acceptance=ratio(sum(s.accepted for s in samples), sum(s.proposed for s in samples)),
        tokens_per_round=ratio(tokens, sum(s.rounds for s in samples)),
        rows_per_round=ratio(
            sum(s.later_rows for s in samples), sum(s.later_rounds for s in samples)
        ),
        tokens_per_row=ratio(
            sum(s.later_tokens for s in samples), sum(s.later_rows for s in samples)
        ),
        passes_per_round=ratio(
            sum(s.draft_passes for s in samples), sum(s.rounds for s in samples)
        ),
        tokens_per_second=_mean([s.tokens_per_second for s in samples if s.tokens_per_second]),
        speedup=fmean(speedups) if speedups else None,
        interval=bootstrap(speedups) if speedups else None,
        first_ms=_first_ms(samples),
        host_ms=median(s.host_ms for s in samples),
        joules_per_token=_joules(samples),
        peak_gb=max(s.surroundings.peak_gb for s in samples),
        outputs_that_differ=sum(s.differing > 0 for s in samples),
        break_even=fit_break_even([a for a, _ in points], speedups) if fixed else None,
        buckets=_buckets(points) if fixed else (),
    )


def points_of(condition: Condition, trials: Iterable[Trial]) -> list[tuple[float, float]]:
    """Acceptance of the chain and speed-up of each prompt that was timed."""
    found = []
    for trial in trials:
        speedup = trial.speedup(condition)
        if speedup is not None:
            work = trial.samples[condition].work
            found.append((ratio(work.chain_accepted, work.chain_proposed), speedup))
    return found


def bootstrap(values: Sequence[float]) -> Interval:
    """The interval of the mean of `values`, by resampling them 2,000 times.

    Equal values give equal intervals with every version of numpy: the stream of `RandomState` is
    frozen, and a result is checked by computing it again.
    """
    chosen = np.random.RandomState(0).randint(len(values), size=(_RESAMPLES, len(values)))
    means = np.asarray(values)[chosen].mean(axis=1)
    low, high = np.quantile(means, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2]).tolist()
    return low, high


def _buckets(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, int] | None, ...]:
    sorted_in = [[s for a, s in points if low <= a < high] for low, high in BUCKETS]
    return tuple((fmean(found), len(found)) if found else None for found in sorted_in)


def _first_ms(samples: Sequence[Sample]) -> float | None:
    """Where it is not known who read a prompt, in older results, all samples count."""
    known = any(s.work.reads_prompt is not None for s in samples)
    seconds = [s.work.first_seconds for s in samples if s.work.reads_prompt or not known]
    return 1e3 * median(seconds) if seconds else None


def _joules(samples: Sequence[Sample]) -> float | None:
    """Reading a prompt is no part of decoding, so such samples count only if there is no other."""
    measured = [s for s in samples if s.surroundings.joules is not None]
    measured = [s for s in measured if not s.work.reads_prompt] or measured
    tokens = sum(s.tokens for s in measured)
    return sum(s.surroundings.joules or 0.0 for s in measured) / tokens if tokens else None


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def bucket_name(bounds: tuple[float, float]) -> str:
    """The name of a bucket of acceptance, as the Polish study writes it."""
    low, high = bounds
    if not low:
        return f"< {high:.0%}"
    return f"{low:.0%}–{high:.0%}" if high < 1 else f"≥ {low:.0%}"
