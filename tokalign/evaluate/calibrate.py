"""Measuring how long passes of models take on this machine, and what their drafts are worth.

Every repetition times all passes in an order of its own, so that heat and other programs affect all
alike; the first one is a warm-up. It begins with what decisions need most, and measuring ends when
its time is over: on a slow machine a curve has fewer counts of rows, and shorter contexts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from tokalign.evaluate.timed_passes import MOST_ROWS, Pass, TimedPasses
from tokalign.runtime.cost import ContextCosts, CostCurve, Timing
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.beam_search import DEFAULT_SHAPE, BeamShape
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import device_name, machine_of, mlx_version
from tokalign.runtime.rounds import Round

CONTEXTS = (128, 1024, 4096)
"""How many ids precede the measured passes: what a row costs depends on how far it looks back."""

ROWS = (1, 2, 4, 8, 16, 33, 3, 5, 9, 6, 7, 12, 13, 17, 24, 32, 11, 14)
"""Counts of rows, the most telling first; no chip is known to have a step between them."""

SEARCHES = tuple(BeamShape(DEFAULT_SHAPE.width, steps) for steps in (1, DEFAULT_SHAPE.length))
"""Beam searches of a recurrent drafter. Every step after the first costs the same."""

_BRIEF_ROWS, _BRIEF_BUDGET = (1, 2, 4, 8, 16, 3, 5, 6, 9, 13), 4.0
_MOST_REPETITIONS = 15
_READING_SHARE = 0.25
"""Share of the budget that reading one context takes at most, about."""
_DISTURBED = 0.2
"""Spread of the times of one row, as a share of their median, above which the curve says so."""

Times = Mapping[TimedPasses, Mapping[Pass, Sequence[float]]]
"""Seconds by context and by what was timed there."""


def measure_curve(
    target: Any,
    draft: Any = None,
    *,
    budget: float = 30.0,
    advance: Callable[[float], object] = lambda _: None,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
) -> CostCurve:
    """Measure the cost curve of loaded models.

    target: an mlx-lm model. draft: another one, or a recurrent drafter of the target.
    budget: after how many seconds it ends, with what has been measured until then.
    advance: told the share of the budget spent since the last call.
    """
    began = perf_counter()
    read = read_contexts(target, draft, contexts, _READING_SHARE * budget)
    times = time_passes(read, rows, budget - (perf_counter() - began), advance, perf_counter)
    return curve_of(target, draft, times)


def measure_briefly(
    target: Any, draft: Any = None, *, advance: Callable[[float], object] = lambda _: None
) -> CostCurve:
    """Measure a curve in four seconds: fewer counts of rows, after a short context only."""
    brief: Any = {"rows": _BRIEF_ROWS, "contexts": CONTEXTS[:1], "budget": _BRIEF_BUDGET}
    return measure_curve(target, draft, advance=advance, **brief)


def read_contexts(
    target: Any, draft: Any, lengths: Iterable[int], limit: float
) -> list[TimedPasses]:
    """Contexts of these lengths, as far as the target can hold them and reading is quick.

    limit: seconds for each. The first context is cut short if it takes more; others are left out.
    """
    room = max(1, TargetModelSession(target).context_length - MOST_ROWS)
    contexts = list[TimedPasses]()
    for length in dict.fromkeys(min(length, room) for length in lengths):
        context = TimedPasses(target, draft, length)
        if not context.read_context(limit):
            return contexts or [context]
        contexts.append(context)
    return contexts


def time_passes(
    contexts: Sequence[TimedPasses],
    rows: Sequence[int],
    budget: float,
    advance: Callable[[float], object],
    clock: Callable[[], float],
) -> Times:
    """Time everything, repetition by repetition; beam searches after the first context alone.

    budget: seconds after which it ends, once two counts of rows are known.
    Returns: the times without the first, which is a warm-up, unless there is no other.
    """
    timed = [
        (context, what, seconds)
        for context in contexts
        for what, seconds in context.passes(
            rows, SEARCHES if context is contexts[0] else ()
        ).items()
    ]
    times = {context: defaultdict[Pass, list[float]](list) for context in contexts}
    start, shown, last, number = clock(), 0.0, 0.0, 0
    for repetition in range(_MOST_REPETITIONS + 1):
        if repetition:
            Random(repetition).shuffle(timed)
        for context, what, seconds in timed:
            spent = clock() - start
            if number > 1 and spent + 2 * last > budget:
                break
            number += 1
            share = min(1.0, max(spent / max(budget, 1e-9), repetition / (_MOST_REPETITIONS + 1)))
            advance(share - shown)
            shown = share
            times[context][what].append(seconds())
            last = clock() - start - spent
    return {
        context: {what: seconds[1:] or seconds for what, seconds in of_context.items()}
        for context, of_context in times.items()
    }


def curve_of(target: Any, draft: Any, times: Times) -> CostCurve:
    """The curve of these times."""
    first = next(iter(times.values()))
    most = max(what for what in first if isinstance(what, int))  # others would cut all to theirs
    single, count = Timing.of(first[1]), len(first[1])
    spread = (single.high - single.low) / single.median
    searches = {
        what.length: Timing.of(seconds)
        for what, seconds in first.items()
        if isinstance(what, BeamShape)
    }
    costs = [_costs(context.length, timed) for context, timed in times.items() if most in timed]
    if search := first.get(DEFAULT_SHAPE):
        step = Timing.of([seconds / DEFAULT_SHAPE.length for seconds in search])
        costs = [replace(one, draft_pass=step) for one in costs]
    repetitions = f"{count} repetitions, the warm-up left out" if count > 1 else "one repetition"
    return CostCurve(
        name=f"{device_name()}, measured",
        source=f"tokalign calibrate, mlx {mlx_version()}; medians and quartiles of {repetitions}; "
        f"the times of one row differ by {spread:.0%}"
        + (", so other programs disturbed the measurement" if spread > _DISTURBED else ""),
        contexts=tuple(costs),
        host=max(0.0, single.median - median(first["ahead"])) if "ahead" in first else 0.0,
        machine=machine_of(target, draft),
        searches={DEFAULT_SHAPE.width: searches} if searches else {},
    )


def _costs(length: int, timed: Mapping[Pass, Sequence[float]]) -> ContextCosts:
    timings = {what: Timing.of(seconds) for what, seconds in timed.items()}
    return ContextCosts(
        tokens=length,
        rows={what: timing for what, timing in timings.items() if isinstance(what, int)},
        draft_pass=timings.get("draft"),
        tree_pass=timings.get("tree"),
    )


# -- what drafts are worth -------------------------------------------------------------------------


def self_draft_rounds(
    decoder: Decoder, prompts: Sequence[str], *, tokens: int, limit: int, seconds: float
) -> list[Round]:
    """Decode `tokens` ids after each prompt with long chains. Returns: the rounds with a draft.

    decoder: with a draft model or a recurrent drafter. limit: draft passes of a round.
    seconds: no further prompt is begun that would end later, if it takes as long as those before.
    """
    began, rounds = perf_counter(), list[Round]()
    method = "draft" if decoder.drafter is None else "drafter"
    drafting = decoder.drafting.with_options(method=method, num_draft_tokens=limit, alternatives=0)
    decoder = replace(decoder, drafting=drafting)
    for number, text in enumerate(prompts):
        if number and (perf_counter() - began) * (1 + 1 / number) > seconds:
            break
        prompt = decoder.prompt(text, use_template=False)
        generation = Generation(decoder, prompt, max_tokens=tokens)
        for _ in generation:
            pass
        rounds += [one for one in generation.rounds if one.tree]
    return rounds


def conditional_acceptance(rounds: Iterable[Round], longest: int) -> list[float]:
    """Share of proposals right at the i-th id, of those right before it; i = 1, ..., `longest`."""
    accepted = [one.accepted for one in rounds]
    shares = []
    for position in range(longest):
        reached = [count for count in accepted if count >= position]
        if not reached:
            break
        shares.append(sum(count > position for count in reached) / len(reached))
    return shares


def speedup_at(rounds: Iterable[Round], costs: Costs, passes: int) -> float:
    """How much faster than plain decoding rounds of at most this many draft passes would be.

    Only chains are counted. How many ids a pass brings depends on both tokenizers and is not known:
    they are spread evenly over the passes of a round, which is right on average only.
    """
    seconds, tokens = 0.0, 0
    for one in rounds:
        taken = min(passes, one.draft_passes)
        kept = max(1, round(one.tree.chain_length * taken / one.draft_passes))
        seconds += costs.round(kept, taken)
        tokens += 1 + sum(index < kept for index in one.path)
    return tokens * costs.verify(1) / seconds
