"""Measuring a cost curve: what passes of a loaded pair take on this machine.

What is timed is what decoding does: a verification of m rows by the verifier itself, a draft by the
session itself. Every repetition goes through all counts and contexts in an order of its own, so
that heat and other programs hit all alike; the first is a warm-up (kernels are compiled then).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from tokalign.cost.curve import ContextCosts, CostCurve, Timing
from tokalign.runtime.context import Context
from tokalign.runtime.mlx.machine import machine_of
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.mlx.weights import device_name, mlx_version
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

MOST_ROWS = 33
CONTEXTS = (128, 1024)

_FEWER_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 24, 32, 33)
"""What is left out where every count would take too long: where no chip is known to have a step."""

_DRAFT_STEPS = 4
_LEAST_REPETITIONS, _MOST_REPETITIONS = 3, 15


def measure_curve(
    target: Any,
    draft: Any = None,
    *,
    contexts: Sequence[int] = CONTEXTS,
    budget: float = 30.0,
    advance: Callable[[float], object] = lambda _: None,
    clock: Callable[[], float] = perf_counter,
) -> CostCurve:
    """The cost curve of two loaded mlx-lm models.

    contexts: ids in front of the measured passes; those that the models cannot hold are left out.
    budget: seconds, roughly; three repetitions are made in any case, of fewer counts if need be.
    advance: told the share of the budget spent since the last call.
    """
    benches = [_Bench(target, draft, length, clock) for length in _possible(contexts, target)]
    began = clock()
    slowest = [bench.verify(rows) for bench in benches for rows in (1, MOST_ROWS)]
    slowest = [bench.verify(rows) for bench in benches for rows in (1, MOST_ROWS)]  # compiled now
    one_repetition = sum(slowest) / 2 * MOST_ROWS
    enough = one_repetition * (_LEAST_REPETITIONS + 1) <= budget
    rows = range(1, MOST_ROWS + 1) if enough else _FEWER_ROWS
    times = _repeat(benches, rows, began + budget, budget, advance, clock)
    costs = tuple(_costs(bench, times) for bench in benches)
    sync = costs[0].rows[1].median
    return CostCurve(
        name=f"{device_name()}, measured",
        source=f"tokalign calibrate, mlx {mlx_version()}; medians and quartiles of "
        f"{len(times[benches[0], 'rows', 1])} repetitions, the warm-up left out",
        contexts=costs,
        host=max(0.0, sync - median(times[benches[0], "ahead", 1])),
        machine=machine_of(target, draft),
    )


@dataclass(eq=False)
class _Bench:
    """A pair at one context length: its caches stay filled up to there."""

    target: Any
    draft: Any
    length: int
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        size = max(2, int(getattr(self.target.args, "vocab_size", 1000)))
        self._ids = [TargetId(i * 7919 % size) for i in range(self.length + MOST_ROWS)]
        self._verifier = TargetVerifier(ModelSession(self.target), Sampling())
        self._draft = None if self.draft is None else ModelSession(self.draft)
        size = 2 if self.draft is None else max(2, int(self.draft.args.vocab_size))
        self._draft_ids = [int(i) % size for i in self._ids[: self.length]]

    def verify(self, rows: int) -> float:
        """Seconds of a round over so many rows, host and device in turn."""
        context = Context(self._ids[: self.length])
        proposed = tuple(self._ids[self.length : self.length + rows - 1])
        proposal = Proposal(tree=TokenTree.chain(proposed, ""))
        began = self.clock()
        self._verifier.verify(context, proposal)
        return self.clock() - began

    def run_ahead(self, rounds: int = 6) -> list[float]:
        """Seconds of rounds of plain decoding, from verdict to verdict."""
        context, ends = Context(self._ids[: self.length]), []
        for _ in range(rounds):
            context.extend(self._verifier.verify(context, Proposal(run_ahead=True)).ids)
            ends.append(self.clock())
        self._verifier.verify(context, Proposal())  # takes the pass that is still under way
        return [later - sooner for sooner, later in pairwise(ends[1:])]

    def draft_pass(self) -> float | None:
        """Seconds of one of several passes of the draft model."""
        if self._draft is None:
            return None
        began = self.clock()
        self._draft.draft(self._draft_ids, _DRAFT_STEPS)()
        return (self.clock() - began) / _DRAFT_STEPS


_Key = tuple[_Bench, str, int]


def _repeat(
    benches: Sequence[_Bench],
    rows: Sequence[int],
    until: float,
    budget: float,
    advance: Callable[[float], object],
    clock: Callable[[], float],
) -> dict[_Key, list[float]]:
    """Times of everything, repetition by repetition."""
    times: dict[_Key, list[float]] = defaultdict(list)
    for repetition in range(_MOST_REPETITIONS + 1):
        began = clock()
        if repetition == 1:
            times.clear()  # the warm-up
        if repetition > _LEAST_REPETITIONS and began > until:
            break
        for key, seconds in _once(benches, rows, Random(repetition)):
            times[key].append(seconds)
        advance((clock() - began) / budget)
    return times


def _once(
    benches: Sequence[_Bench], rows: Sequence[int], order: Random
) -> Iterator[tuple[_Key, float]]:
    places = [(bench, count) for bench in benches for count in rows]
    order.shuffle(places)
    for bench, count in places:
        yield (bench, "rows", count), bench.verify(count)
    for bench in benches:
        drafted = bench.draft_pass()
        if drafted is not None:
            yield (bench, "draft", 1), drafted
        yield from (((bench, "ahead", 1), seconds) for seconds in bench.run_ahead())


def _costs(bench: _Bench, times: dict[_Key, list[float]]) -> ContextCosts:
    drafted = times.get((bench, "draft", 1))
    return ContextCosts(
        tokens=bench.length,
        rows={
            count: Timing.of(seconds)
            for (where, what, count), seconds in times.items()
            if where is bench and what == "rows"
        },
        draft_pass=Timing.of(drafted) if drafted else None,
    )


def _possible(contexts: Sequence[int], target: Any) -> list[int]:
    room = ModelSession(target).context_length - MOST_ROWS
    return [length for length in sorted(contexts) if length <= room] or [max(1, room)]
