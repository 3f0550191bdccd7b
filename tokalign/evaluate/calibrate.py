"""Measuring how long passes of models take on this machine.

Every repetition times all passes in an order of its own, but for one row, which is first, so that
heat and other programs affect all alike; the first one is a warm-up. It begins with what decisions
need most, and measuring ends when its time is over: on a slow machine a curve has fewer counts of
rows, after a shorter context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.errors import DisturbedError
from tokalign.evaluate.timed_passes import MOST_ROWS, Pass, TimedPasses
from tokalign.runtime.cost import CostCurve, Timing
from tokalign.runtime.mlx.machine import device_name, machine_of, mlx_version
from tokalign.runtime.mlx.session import TargetModelSession

CONTEXT = 128
"""How many ids precede the measured passes."""

ROWS = (1, 2, 4, 8, 16, 33, 3, 5, 9, 6, 7, 12, 13, 17, 24, 32, 11, 14)
"""Counts of rows, the most telling first; no chip is known to have a step between them."""

_UNSOUND = "unsound"
"""The note of a curve that says why `require_sound` refuses it."""

_MOST_REPETITIONS = 15
_READING_SHARE = 0.25
"""Share of the budget that reading the context takes at most, about."""
_WARMING_SHARE, _NEEDED = 0.3, 9
"""The same of the first repetition, beyond so many passes: six counts of rows, and all others."""
_DISTURBED = 0.2
"""Spread of the times of one row, as a share of their median, above which the curve says so."""
_FEWEST_COUNTS = 3
"""With two counts of rows, of which one may have been delayed, a curve says nothing."""
_FALLS, _ENOUGH = 1.25, 5
"""By how much more rows may take less time, where passes were repeated less often than this.

Chips step down by a tenth. A matrix product may step down by half (OpenBLAS: 12 rows take 1.8 times
as long as 16), which passes in another order each time show again and again.
"""


def measure_curve(
    target: Any,
    draft: Any = None,
    ids: NDArray[np.uint32] | None = None,
    *,
    budget: float = 30.0,
    advance: Callable[[float], object] = lambda _: None,
    rows: Sequence[int] = ROWS,
) -> CostCurve:
    """Measure the cost curve of loaded models.

    draft: an mlx-lm model, or a trained drafter of the target. ids: those that the head of what
    drafts is shortened to (`Drafting.head_ids`). budget: seconds after which it ends with what it
    has. advance: called with the share of the budget spent since the last call.
    """
    began = perf_counter()
    room = TargetModelSession(target).context_length - MOST_ROWS
    passes = TimedPasses(target, draft, max(1, min(CONTEXT, room)), ids)
    passes.read_context(_READING_SHARE * budget)
    remaining = budget - (perf_counter() - began)
    times = time_passes(passes.passes(rows), remaining, advance, perf_counter)
    return curve_of(target, draft, passes.length, times)


def require_sound(curve: CostCurve) -> CostCurve:
    """The curve. Raises: DisturbedError for one that says nothing of the machine."""
    if why := curve.notes.get(_UNSOUND):
        raise DisturbedError(
            f"what passes cost could not be measured: {why}; measure again when less else runs, "
            "or for longer, with a larger `tokalign calibrate --budget`"
        )
    return curve


measure_briefly = partial(measure_curve, budget=4.0, rows=ROWS[:10])
"""Measure a curve of fewer counts of rows in four seconds."""


def time_passes(
    passes: Mapping[Pass, Callable[[], float]],
    budget: float,
    advance: Callable[[float], object],
    clock: Callable[[], float],
) -> dict[Pass, list[float]]:
    """Time what there is time for, repetition by repetition, the most important first. Returns:
    seconds of each pass, without its first, a warm-up, if there are more. budget: seconds after
    which it ends, once two passes are timed."""
    order, times = [*passes], defaultdict[Pass, list[float]](list)
    start, shown, last, number = clock(), 0.0, 0.0, 0
    for repetition in range(_MOST_REPETITIONS + 1):
        if repetition:
            Random(repetition).shuffle(order)
            order.sort(key=lambda what: what != 1)  # without one row's times nothing is known
        for what in order:
            spent = clock() - start
            is_needed = repetition or len(times) < _NEEDED
            if number > 1 and spent + 2 * last > budget * (1 if is_needed else _WARMING_SHARE):
                break
            number += 1
            share = min(1.0, max(spent / max(budget, 1e-9), repetition / (_MOST_REPETITIONS + 1)))
            advance(share - shown)
            shown = share
            times[what].append(passes[what]())
            last = clock() - start - spent
        order = [*times]  # few passes that are repeated say more than many that are not
    return {what: seconds[1:] or seconds for what, seconds in times.items()}


def _why_unsound(times: Mapping[Pass, list[float]]) -> str | None:
    """Why a curve of these times says nothing, by their quartiles; None if it does."""
    timings = {what: Timing.of(times[what]) for what in times if isinstance(what, int)}
    if len(times[1]) < 2 or len(timings) < _FEWEST_COUNTS:
        return f"there was too little time to repeat passes over {_FEWEST_COUNTS} counts of rows"
    for fewer, more in pairwise(sorted(timings)):
        slow, fast = timings[fewer], timings[more]
        seldom = min(len(times[fewer]), len(times[more])) < _ENOUGH
        if seldom and slow.low > _FALLS * fast.high:
            ratio = slow.median / fast.median
            return f"the machine was busy ({fewer} rows took {ratio:.1f} times as long as {more})"
    return None


def _timings_of_rows(times: Mapping[int, list[float]]) -> dict[int, Timing]:
    """What rows take, as these times say. Where more rows seem to take less, chance made some look
    cheap, and drafts that need no rows would be left out for them: all their times count for each.
    What was seen often is believed.
    Source: isotonic regression by medians (pool adjacent violators; Robertson et al., 1988).
    """
    often, pools = min(map(len, times.values())) >= _ENOUGH, list[tuple[list[int], list[float]]]()
    for count in sorted(times):
        pools.append(([count], [*times[count]]))
        while len(pools) > 1:
            (fewer, before), (more, after) = pools[-2:]
            slow, fast = Timing.of(before), Timing.of(after)
            if slow.median <= fast.median or (often and slow.low > fast.high):
                break
            pools[-2:] = [(fewer + more, before + after)]
    return {count: Timing.of(seconds) for counts, seconds in pools for count in counts}


def curve_of(target: Any, draft: Any, length: int, times: Mapping[Pass, list[float]]) -> CostCurve:
    """The curve of these times after a context of `length` ids."""
    timings = {what: Timing.of(seconds) for what, seconds in times.items()}
    rows = _timings_of_rows({what: times[what] for what in times if isinstance(what, int)})
    single, count = timings[1], len(times[1])
    spread = (single.high - single.low) / single.median
    unsound = _why_unsound(times)
    repetitions = f"{count} repetitions, the warm-up left out" if count > 1 else "one repetition"
    return CostCurve(
        name=f"{device_name()}, measured",
        source=f"tokalign calibrate, mlx {mlx_version()}; medians and quartiles of {repetitions}; "
        f"the times of one row differ by {spread:.0%}"
        + (", so other programs disturbed the measurement" if spread > _DISTURBED else ""),
        context=length,
        rows=rows,
        draft_pass=timings.get("draft"),
        tree_pass=timings.get("tree"),
        host=max(0.0, rows[1].median - median(times["ahead"])) if "ahead" in times else 0.0,
        machine=machine_of(target, draft),
        notes={} if unsound is None else {_UNSOUND: unsound},
    )
