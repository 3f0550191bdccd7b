"""Measuring how long passes of models take on this machine, and what their drafts are worth.

Every repetition times all passes in an order of its own, so that heat and other programs affect all
alike; the first one is a warm-up in which kernels are compiled. A chip that grows hot may slow down
wide passes alone, so while a pass over `CONTROL_ROWS` rows is slower than at first the chip is let
cool. The curve says how far the times of one row differ, and how those of the control drifted.
Measuring ends when its time is over, in the middle of a repetition if need be, and nothing begins
that is expected to last longer. The first repetition begins with what decisions need most, so on a
slow machine a curve has fewer counts of rows, shorter contexts, and in the worst case times of the
warm-up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any

from tokalign.evaluate.timed_passes import MOST_ROWS, Step, TimedPasses, What
from tokalign.runtime.cost import ContextCosts, CostCurve, Timing
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.learned_costs import Costs
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.beam_search import DEFAULT_SHAPE, BeamDrafter, BeamShape, DrafterSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import device_name, machine_of, mlx_version
from tokalign.runtime.rounds import Context, Drafter, Round

CONTEXTS = (128, 1024, 4096)
"""How many ids precede the measured passes: what a row costs depends on how far it looks back."""

_READING_SHARE = 0.25
"""Reading a context takes about this share of the budget at most. The first one is cut short where
it would take more; a longer one is left out."""

_BRIEF_ROWS = (1, 2, 4, 8, 16, 3, 5, 6, 9, 13)
_BRIEF_SEARCHES = tuple(BeamShape(DEFAULT_SHAPE.width, steps) for steps in (1, 4))
_BRIEF_BUDGET, _BRIEF_LIMIT = 3.0, 8.0
"""What a first impression of a machine is made from, and how many seconds it takes."""

_FEWER_ROWS = (1, 2, 4, 8, 16, 33, 3, 5, 9, 6, 7, 12, 13, 17, 24, 32, 11, 14)
"""Measured where every count would take too long: no chip is known to have a step between them. The
first ones tell most."""

_USUAL_COST = 1.5
"""Of a pass over some rows, in passes over one, before any is known."""

_SEARCHES = tuple(BeamShape(width, steps) for width in (1, 2, 4, 8) for steps in (1, 4))
"""Beam searches of a recurrent drafter that are timed; `DEFAULT_SHAPE` is one of them.

Every step after the first costs the same, so two numbers of steps tell of all.
"""

_LEAST_REPETITIONS, _MOST_REPETITIONS = 3, 15
_DISTURBED = 0.2
"""Spread of the times of one row, as a share of their median, above which the curve says so."""
_COOLING_SHARE = 0.25
"""Pauses that let the machine cool take at most this share of the budget."""
CONTROL_ROWS = 8
"""Of a pass that tells whether the chip grows hot: enough to show it, few enough to be cheap."""
_SLOWED, _PAUSE = 1.1, 1.0
"""A control so many times slower than at first asks for a pause of so many seconds."""


def measure_curve(
    target: Any,
    draft: Any = None,
    *,
    budget: float = 30.0,
    advance: Callable[[float], object] = lambda _: None,
) -> CostCurve:
    """Measure the cost curve of loaded models.

    target: an mlx-lm model. draft: another one, or a recurrent drafter of the target.
    budget: after how many seconds it ends, with what has been measured until then.
    advance: told the share of the budget spent since the last call.
    """
    began = perf_counter()
    contexts = _affordable_contexts(target, draft, _possible_lengths(target), budget)
    one_repetition = len(contexts) * MOST_ROWS * _USUAL_COST * contexts[0].verify(1)
    enough = one_repetition * (_LEAST_REPETITIONS + 1) <= budget
    others = range(1, MOST_ROWS + 1) if enough else ()
    rows = tuple(dict.fromkeys([*_FEWER_ROWS, *others]))
    left, pauses = budget - (perf_counter() - began), _COOLING_SHARE * budget
    times = _repeat(
        contexts,
        rows,
        _SEARCHES,
        advance,
        budget=left,
        limit=left,
        pauses=pauses,
        clock=perf_counter,
    )
    return _curve(target, draft, times)


def measure_briefly(
    target: Any, draft: Any = None, *, advance: Callable[[float], object] = lambda _: None
) -> CostCurve:
    """Measure a curve in about three seconds: few counts of rows, after a short context only.

    Of a recurrent drafter, beam searches of the width that decoding uses.
    A slow machine takes eight seconds, with fewer counts if necessary.
    advance: as in `measure_curve`, which knows more in the end.
    """
    began = perf_counter()
    contexts = _affordable_contexts(target, draft, _possible_lengths(target)[:1], _BRIEF_LIMIT)
    limit = _BRIEF_LIMIT - (perf_counter() - began)
    times = _repeat(
        contexts,
        _BRIEF_ROWS,
        _BRIEF_SEARCHES,
        advance,
        budget=_BRIEF_BUDGET,
        limit=limit,
        clock=perf_counter,
    )
    return _curve(target, draft, times)


def _possible_lengths(target: Any) -> list[int]:
    """Those of `CONTEXTS` that the target can hold, else what it can hold."""
    room = TargetModelSession(target).context_length - MOST_ROWS
    return [length for length in CONTEXTS if length <= room] or [max(1, room)]


def _affordable_contexts(
    target: Any, draft: Any, lengths: Iterable[int], budget: float
) -> list[TimedPasses]:
    """A context of each length, read; after the first only where reading it is quick.

    How long that takes is told by the one before.
    """
    limit, found, per_id = _READING_SHARE * budget, list[TimedPasses](), 0.0
    for length in lengths:
        if length * per_id > limit:
            break
        context = TimedPasses(target, draft, length)
        per_id = context.fill(math.inf if found else limit) / context.length
        found.append(context)
    return found


_Times = Mapping[TimedPasses, Mapping[What, Sequence[float]]]
"""Seconds by context and by what was timed there."""


def _repeat(
    contexts: Sequence[TimedPasses],
    rows: Sequence[int],
    searches: Iterable[BeamShape] = (),
    advance: Callable[[float], object] = lambda _: None,
    *,
    budget: float,
    limit: float,
    pauses: float = 0.0,
    clock: Callable[[], float],
) -> _Times:
    """Time everything, repetition by repetition; the searches on the first context alone.

    budget: seconds after which it ends if there are enough repetitions. limit: seconds after which
    it ends in any case, once two counts of rows are known.
    pauses: seconds of pauses in which the chip may cool, at most.
    Returns: the times without the first, which is a warm-up, unless there is no other.
    """
    first = contexts[0]
    steps = [
        (context, what, step)
        for context in contexts
        for what, step in context.steps(rows, searches if context is first else ()).items()
    ]
    times = {context: defaultdict[What, list[float]](list) for context in contexts}
    start, told, last = clock(), 0.0, 0.0
    budget, limit = max(budget, 1e-9), max(limit, 1e-9)
    for number, (context, what, step) in enumerate(_in_turn(steps)):
        spent, repetitions = clock() - start, number / len(steps)
        least = min(spent / budget, repetitions / (_LEAST_REPETITIONS + 1))
        share = min(1.0, max(spent / limit, least))
        if number > 1 and (share == 1 or spent + 2 * last > limit):
            break
        advance(share - told)
        told = share
        times[context][what].append(step())
        last = clock() - start - spent
        if (context, what) == (first, CONTROL_ROWS) and repetitions >= 1:
            again = partial(first.verify, CONTROL_ROWS)
            pauses -= _cool(times[first][CONTROL_ROWS][1:], again, pauses)
    return {
        context: {what: seconds[1:] or seconds for what, seconds in timed.items()}
        for context, timed in times.items()
    }


_Step = tuple[TimedPasses, What, Step]


def _in_turn(steps: list[_Step]) -> Iterator[_Step]:
    """Every step once in each repetition: first as they are, then in an order of its own."""
    for repetition in range(_MOST_REPETITIONS + 1):
        if repetition:
            Random(repetition).shuffle(steps)
        yield from steps


def _cool(seconds: Sequence[float], again: Callable[[], float], allowed: float) -> float:
    """Pause while a pass is slower than at first, as long as that helps.

    seconds: that the pass has taken so far; again: times it once more.
    Returns: how much of `allowed` is used up; all of it where pauses do not help.
    """
    cool, now, paused = median(seconds[:3]), seconds[-1], 0.0
    while now > _SLOWED * cool and paused + _PAUSE <= allowed:
        sleep(_PAUSE)
        paused += _PAUSE
        before, now = now, again()
        if now > (before + cool) / 2:
            return allowed
    return paused


def _curve(target: Any, draft: Any, times: _Times) -> CostCurve:
    first = next(iter(times.values()))
    searches: dict[int, dict[int, Timing]] = {}
    for what, seconds in first.items():
        if isinstance(what, BeamShape):
            searches.setdefault(what.width, {})[what.length] = Timing.of(seconds)
    most = max(what for what in first if isinstance(what, int))  # others would cut all to theirs
    costs = [_costs(context.length, timed) for context, timed in times.items() if most in timed]
    single, count = costs[0].rows[1], len(first[1])
    spread = (single.high - single.low) / single.median
    control = first.get(CONTROL_ROWS, ())
    several = len(control) > 1  # on a slow machine there may be one time of it, or none
    repetitions = f"{count} repetitions, the warm-up left out"
    if step := first.get(DEFAULT_SHAPE):
        step = [seconds / DEFAULT_SHAPE.length for seconds in step]
        costs = [replace(one, draft_pass=Timing.of(step)) for one in costs]
    return CostCurve(
        name=f"{device_name()}, measured",
        source=f"tokalign calibrate, mlx {mlx_version()}; medians and quartiles of "
        f"{repetitions if count > 1 else 'a single repetition'}; "
        f"the times of one row differ by {spread:.0%}"
        + (", so other programs disturbed the measurement" if spread > _DISTURBED else "")
        + (f"; those of {CONTROL_ROWS} rows drifted by {_drift(control):+.0%}" if several else ""),
        contexts=tuple(costs),
        host=max(0.0, single.median - median(first["ahead"])) if "ahead" in first else 0.0,
        machine=machine_of(target, draft),
        searches=searches,
    )


def _costs(length: int, timed: Mapping[What, Sequence[float]]) -> ContextCosts:
    found = {what: Timing.of(seconds) for what, seconds in timed.items()}
    return ContextCosts(
        tokens=length,
        rows={what: timing for what, timing in found.items() if isinstance(what, int)},
        draft_pass=found.get("draft"),
        tree_pass=found.get("tree"),
    )


def _drift(seconds: Sequence[float]) -> float:
    """How much slower a pass was in the last third of its times than in the first: 0.35 is 35 %."""
    third = -(-len(seconds) // 3)
    return median(seconds[-third:]) / median(seconds[:third]) - 1


def self_draft_rounds(
    decoder: Decoder, prompts: Sequence[str], *, tokens: int, limit: int, seconds: float
) -> list[Round]:
    """Decode `tokens` ids after each prompt with long drafts. Returns: the rounds with a draft.

    decoder: one of method `draft`, or one with a recurrent drafter, which proposes chains here.
    limit: draft passes of a round. seconds: no further prompt is begun that would end later, if it
    takes as long as those before it.
    """
    began, found = perf_counter(), list[Round]()
    drafting = decoder.drafting.with_options(num_draft_tokens=limit)
    decoder = replace(decoder, drafting=drafting)
    session, limits = decoder.open_draft(), Limits(max_tokens=tokens)
    for number, given in enumerate(prompts):
        if number and (perf_counter() - began) * (1 + 1 / number) > seconds:
            break
        prompt, target = decoder.prompt(given, use_template=False), decoder.open_target()
        drafter: Drafter | None = decoder.translated(prompt, session, trees=target.can_branch)
        if decoder.drafter is not None:
            recurrent = DrafterSession(decoder.drafter, target)
            drafter = BeamDrafter(recurrent, shape=BeamShape(1, limit), whole=True)
        assert drafter is not None, "there is nothing that drafts"
        verifier = TargetVerifier(target, Sampling())
        events = decode(Context(prompt.target), drafter, verifier, limits=limits)
        found += [one for one in events if isinstance(one, Round) and one.tree]
    return found


def conditional_acceptance(rounds: Iterable[Round], longest: int) -> list[float]:
    """Share of proposals right at the i-th id, of those right before it; i = 1, ..., `longest`."""
    accepted = [one.accepted for one in rounds]
    found = []
    for position in range(longest):
        reached = [count for count in accepted if count >= position]
        if not reached:
            break
        found.append(sum(count > position for count in reached) / len(reached))
    return found


def speedup_at(rounds: Iterable[Round], costs: Costs, passes: int) -> float:
    """How much faster than plain decoding rounds of at most so many draft passes would be.

    How many ids a pass brings depends on both tokenizers and is not known: they are spread evenly
    over the passes of a round, which is right on average only. Ids beside the first chain are kept
    where they follow the text or an id of the chain that is kept.
    """
    seconds, tokens = 0.0, 0
    for one in rounds:
        tree, taken = one.tree, min(passes, one.draft_passes)
        kept, chain = list(range(len(tree))), tree.chain_length
        if taken < one.draft_passes:
            count = max(1, round(chain * taken / one.draft_passes))
            kept = [i for i in kept if i < count or (i >= chain and tree.parents[i] < count)]
        seconds += costs.of(tree, taken, verified=len(kept))
        tokens += 1 + len(set(one.path).intersection(kept))
    return tokens * costs.verify(1) / seconds
