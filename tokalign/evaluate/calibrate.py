"""Measuring a cost curve: how long passes of loaded models take on this machine.

Besides, how much of what a draft model or a recurrent drafter proposes its target accepts, in a
little text.

The code that is timed is the code that decodes: the verifier verifies m rows, the session drafts,
and a recurrent drafter goes on from the hidden state of the round before.
Passes form a chain, as in decoding: each one reads the id that the last one chose, so that none can
begin before the last has ended. Passes that do not depend on each other overlap on the device, and
their times tell nothing about decoding (ml-explore/mlx issue 4265: 6.1 passes for 8 rows where a
chain takes 1.57).
Every repetition goes through all counts and contexts in an order of its own, so that heat and other
programs affect all alike; the first one is a warm-up in which kernels are compiled. A chip that
grows hot may slow down wide passes alone, so while a pass over `CONTROL_ROWS` rows is slower than
at first the chip is let cool. The curve says how far the times of one row differ, and how those of
the control drifted.
Measuring ends when its time is over, in the middle of a repetition if need be, and nothing begins
that is expected to last longer. The first repetition begins with what decisions need most, so on a
slow machine a curve has fewer counts of rows, shorter contexts, and in the worst case times of the
warm-up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter, sleep
from typing import Any

from tokalign.runtime.cost.curve import ContextCosts, CostCurve, Timing
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft_length.learned_costs import Costs
from tokalign.runtime.loop import Limits, TargetVerifier, decode
from tokalign.runtime.mlx.beam_search import DEFAULT_SHAPE, BeamDrafter, BeamShape, DrafterSession
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import device_name, machine_of, mlx_version, vocabulary_size
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round
from tokalign.runtime.translation.growth import CHILDREN, WIDTH
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

MOST_ROWS = 33
CONTEXTS = (128, 1024, 4096)
"""How many ids precede the measured passes: what a row costs depends on how far it looks back."""

_READING_SHARE = 0.25
"""Reading a context takes about this share of the budget at most. The first one is cut short where
it would take more; a longer one is left out."""
_FIRST_IDS = 8

_BRIEF_ROWS = (1, 2, 4, 8, 16, 3, 5, 6, 9, 13)
_BRIEF_CONTEXT, _BRIEF_BUDGET, _BRIEF_LIMIT = 128, 3.0, 8.0
_BRIEF_SEARCHES = tuple(BeamShape(DEFAULT_SHAPE.width, steps) for steps in (1, 4))
"""What a first impression of a machine is made from."""

_FEWER_ROWS = (1, 2, 4, 8, 16, 33, 3, 5, 9, 6, 7, 12, 13, 17, 24, 32, 11, 14)
"""Measured where every count would take too long: no chip is known to have a step between them. The
first ones tell most."""

_USUAL_COST = 1.5
"""Of a pass over some rows, in passes over one, before any is known."""

_DRAFT_STEPS = 4

_SEARCHES = tuple(BeamShape(width, steps) for width in (1, 2, 4, 8) for steps in (1, 4))
"""Beam searches of a recurrent drafter that are timed; `DEFAULT_SHAPE` is one of them.

Every step after the first costs the same, so two numbers of steps tell of all.
"""

_LEAST_REPETITIONS, _MOST_REPETITIONS = 3, 15
_DISTURBED = 0.2
"""Spread of the times of one row, as a share of their median, above which the curve says so."""
_COOLING_SHARE = 0.25
"""Pauses that let the machine cool take at most this share of the budget."""
_FIRST_ROWS = 6
"""So many counts of rows are timed before the passes of the draft model."""
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
    benches = _affordable_benches(target, draft, budget)
    one_repetition = len(benches) * MOST_ROWS * _USUAL_COST * benches[0].verify(1)
    enough = one_repetition * (_LEAST_REPETITIONS + 1) <= budget
    others = range(1, MOST_ROWS + 1) if enough else ()
    rows = tuple(dict.fromkeys([*_FEWER_ROWS, *others]))
    left = budget - (perf_counter() - began)
    pauses = _COOLING_SHARE * budget
    times = _repeat(benches, rows, advance, budget=left, limit=left, pauses=pauses)
    return _curve(target, draft, benches, times)


def measure_briefly(
    target: Any, draft: Any = None, *, advance: Callable[[float], object] = lambda _: None
) -> CostCurve:
    """Measure a curve in about three seconds: few counts of rows, after a short context only.

    Of a recurrent drafter, beam searches of the width that decoding uses.
    A slow machine takes eight seconds, with fewer counts if necessary.
    advance: as in `measure_curve`, which knows more in the end.
    """
    began = perf_counter()
    length = min(_BRIEF_CONTEXT, *_possible_contexts(target))
    bench = _Bench(target, draft, length, _BRIEF_SEARCHES)
    bench.fill(_READING_SHARE * _BRIEF_LIMIT)
    limit = _BRIEF_LIMIT - (perf_counter() - began)
    times = _repeat([bench], _BRIEF_ROWS, advance, budget=_BRIEF_BUDGET, limit=limit)
    return _curve(target, draft, [bench], times)


def _curve(
    target: Any,
    draft: Any,
    benches: Sequence[_Bench],
    times: dict[_Key, list[float]],
) -> CostCurve:
    searches = _searches(benches[0], times)
    most = max(_counts(benches[0], times))  # a context that is not known so far would cut all
    measured = [bench for bench in benches if most in _counts(bench, times)]
    costs = tuple(_costs(bench, times, searches) for bench in measured)
    single = costs[0].rows[1]
    spread = (single.high - single.low) / single.median
    ahead = times.get((benches[0], "ahead", 1))
    control = times.get((benches[0], "rows", CONTROL_ROWS), [])
    several = len(control) > 1  # on a slow machine there may be one time of it, or none
    count = len(times[benches[0], "rows", 1])
    repetitions = (
        f"{count} repetitions, the warm-up left out" if count > 1 else "a single repetition"
    )
    return CostCurve(
        name=f"{device_name()}, measured",
        source=f"tokalign calibrate, mlx {mlx_version()}; medians and quartiles of {repetitions}; "
        f"the times of one row differ by {spread:.0%}"
        + (", so other programs disturbed the measurement" if spread > _DISTURBED else "")
        + (f"; those of {CONTROL_ROWS} rows drifted by {_drift(control):+.0%}" if several else ""),
        contexts=costs,
        host=max(0.0, single.median - median(ahead)) if ahead else 0.0,
        machine=machine_of(target, draft),
        searches=searches,
    )


def _counts(bench: _Bench, times: Mapping[_Key, list[float]]) -> list[int | BeamShape]:
    """The numbers of rows that were timed."""
    return [number for where, what, number in times if where is bench and what == "rows"]


@dataclass(eq=False)
class _Bench:
    """Models at one context length, up to which their caches stay filled.

    draft: as in `measure_curve`. length: of the context; `fill` may lower it.
    shapes: beams that are timed of a recurrent drafter.
    """

    target: Any
    draft: Any
    length: int
    shapes: Sequence[BeamShape] = _SEARCHES

    def __post_init__(self) -> None:
        size = max(2, vocabulary_size(self.target))
        self._chosen = TargetId(0)
        self._ids = [TargetId(i * 7919 % size) for i in range(self.length + MOST_ROWS)]
        drafter = self.draft if isinstance(self.draft, RecurrentDrafter) else None
        model = self.draft if drafter is None else None
        session = TargetModelSession(self.target, keeps_states=drafter is not None)
        self._verifier = TargetVerifier(session, Sampling())
        self._draft = None if model is None else DraftModelSession(model)
        self.searches = self.shapes if drafter is not None else ()
        self._drafter = None if drafter is None else DrafterSession(drafter, session)
        size = 2 if model is None else max(2, vocabulary_size(model))
        self._all_draft_ids = [DraftId(i % size) for i in self._ids]

    def fill(self, limit: float = math.inf) -> float:
        """Have both models read the context. Returns: how many seconds that took.

        limit: after so many seconds the context ends. It is read in parts that double it: each
        takes about as long as all before it, or less.
        """
        began, whole = perf_counter(), self.length
        self.length = whole if limit == math.inf else min(_FIRST_IDS, whole)
        while True:
            self.verify(1)
            self.draft_pass()
            seconds = perf_counter() - began
            if self.length == whole or 2 * seconds > limit:
                return seconds
            self.length = min(2 * self.length, whole)

    @property
    def _draft_ids(self) -> list[DraftId]:
        return self._all_draft_ids[: self.length]

    def verify(self, rows: int) -> float:
        """Seconds of a round that verifies `rows` rows, host and device one after the other.

        The last id of its context is the one that the round before chose.
        """
        context = Context([*self._ids[: self.length - 1], self._chosen])
        proposed = tuple(self._ids[self.length : self.length + rows - 1])
        proposal = Proposal(tree=TokenTree.chain(proposed, ""))
        began = perf_counter()
        verdict = self._verifier.verify(context, proposal)
        seconds = perf_counter() - began
        self._chosen = verdict.ids[-1]
        self._committed = [*context.ids, *verdict.ids]
        return seconds

    def run_ahead(self, rounds: int = 6) -> list[float]:
        """Seconds of rounds of plain decoding that run ahead, from verdict to verdict."""
        context, ends = Context(self._ids[: self.length]), []
        for _ in range(rounds):
            context.extend(self._verifier.verify(context, Proposal(run_ahead=True)).ids)
            ends.append(perf_counter())
        self._verifier.verify(context, Proposal())  # fetches the pass that is still running
        return [later - sooner for sooner, later in pairwise(ends[1:])]

    def draft_pass(self) -> float | None:
        """Seconds of a pass of the draft model, averaged over several; None without one."""
        if self._draft is None:
            return None
        began = perf_counter()
        self._draft.draft(self._draft_ids, _DRAFT_STEPS).read()
        return (perf_counter() - began) / _DRAFT_STEPS

    def tree_pass(self) -> float | None:
        """Seconds of a pass in which the draft model grows a tree, averaged over several.

        The first pass lists what follows the text and the texts without their last ids. Each
        further one goes on after the most texts that `Growth` chooses. None without a draft model,
        or with one whose cache takes no tree.
        """
        if self._draft is None or not self._draft.can_branch:
            return None
        began = perf_counter()
        self._draft.start_shortlists(self._draft_ids, 0).among([], CHILDREN).read()
        tokens: list[DraftId] = []
        parents: list[int] = []
        rows: Sequence[int] = [-1] * WIDTH
        for _ in range(_DRAFT_STEPS - 1):
            computed = len(tokens)
            tokens += map(DraftId, range(WIDTH))
            parents += rows
            rows = range(computed, len(tokens))
            tree = TokenTree(tuple(tokens), tuple(parents), ("draft",) * len(tokens))
            self._draft.branch(self._draft_ids, tree, computed, CHILDREN).read()
        return (perf_counter() - began) / _DRAFT_STEPS

    def search(self, shape: BeamShape) -> float:
        """Seconds of a beam search of the recurrent drafter.

        It goes on from a pass that has just ended, and ends when its tree is known.
        """
        assert self._drafter is not None
        self.verify(1)
        drafter = BeamDrafter(self._drafter, shape=shape)
        committed = Context(self._committed)
        began = perf_counter()
        drafter.draft(committed, steps=shape.length, limit=shape.length)
        return perf_counter() - began


_Key = tuple[_Bench, str, int | BeamShape]
"""What was timed: a bench's "rows" by their number, a "search" by its shape, or one of the passes
"draft", "tree" and "ahead"."""


_Step = tuple[_Key, Callable[[], float | list[float] | None]]
"""Times something once or a few times; None for what the models cannot do."""


def _repeat(
    benches: Sequence[_Bench],
    rows: Sequence[int],
    advance: Callable[[float], object] = lambda _: None,
    *,
    budget: float,
    limit: float,
    pauses: float = 0.0,
    clock: Callable[[], float] = perf_counter,
) -> dict[_Key, list[float]]:
    """Time everything, repetition by repetition.

    budget: seconds after which it ends if there are enough repetitions. limit: seconds after which
    it ends in any case, once two counts of rows are known.
    pauses: seconds of pauses in which the chip may cool, at most.
    Returns: the times without the first, which is a warm-up, unless there is no other.
    """
    times: dict[_Key, list[float]] = defaultdict(list)
    steps, start, told, last = _steps(benches, rows), clock(), 0.0, 0.0
    least, budget, limit = _LEAST_REPETITIONS + 1, max(budget, 1e-9), max(limit, 1e-9)
    for repetition in range(_MOST_REPETITIONS + 1):
        if repetition:
            Random(repetition).shuffle(steps)
        for at, (key, step) in enumerate(steps):
            spent = clock() - start
            share = max(spent / limit, min(spent / budget, (repetition + at / len(steps)) / least))
            if len(times) > 1 and (share >= 1 or spent + 2 * last > limit):
                return _without_warm_up(times)
            advance(min(1.0, share) - told)
            told = min(1.0, share)
            begun = clock()
            if found := step():
                times[key] += found if isinstance(found, list) else [found]
            last = clock() - begun
            if key == (benches[0], "rows", CONTROL_ROWS) and repetition:
                pauses -= _cool(times[key][1:], partial(benches[0].verify, CONTROL_ROWS), pauses)
    return _without_warm_up(times)


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


def _drift(seconds: Sequence[float]) -> float:
    """How much slower a pass was in the last third of its times than in the first: 0.35 is 35 %."""
    third = -(-len(seconds) // 3)
    return median(seconds[-third:]) / median(seconds[:third]) - 1


def _without_warm_up(times: Mapping[_Key, list[float]]) -> dict[_Key, list[float]]:
    return {key: seconds[1:] or seconds for key, seconds in times.items()}


def _steps(benches: Sequence[_Bench], rows: Sequence[int]) -> list[_Step]:
    """All that is timed, the most important first."""
    steps: list[_Step] = []
    for bench in benches:
        verified: list[_Step] = [((bench, "rows", n), partial(bench.verify, n)) for n in rows]
        steps += verified[:_FIRST_ROWS]
        steps += [((bench, "draft", 1), bench.draft_pass), ((bench, "tree", 1), bench.tree_pass)]
        steps += [((bench, "ahead", 1), bench.run_ahead), *verified[_FIRST_ROWS:]]
    first = benches[0]
    steps += [((first, "search", shape), partial(first.search, shape)) for shape in first.searches]
    return steps


def _costs(
    bench: _Bench, times: dict[_Key, list[float]], searches: Mapping[int, Mapping[int, Timing]]
) -> ContextCosts:
    drafted, grown = times.get((bench, "draft", 1)), times.get((bench, "tree", 1))
    draft_pass = Timing.of(drafted) if drafted else None
    if searches:
        width, steps = DEFAULT_SHAPE
        draft_pass = Timing(*(seconds / steps for seconds in searches[width][steps]))
    return ContextCosts(
        tokens=bench.length,
        rows={
            number: Timing.of(seconds)
            for (where, what, number), seconds in times.items()
            if where is bench and what == "rows" and isinstance(number, int)
        },
        draft_pass=draft_pass,
        tree_pass=Timing.of(grown) if grown else None,
    )


def _searches(bench: _Bench, times: dict[_Key, list[float]]) -> dict[int, dict[int, Timing]]:
    """As in `CostCurve`."""
    found: dict[int, dict[int, Timing]] = {}
    for (where, _, shape), seconds in times.items():
        if where is bench and isinstance(shape, BeamShape):
            found.setdefault(shape.width, {})[shape.length] = Timing.of(seconds)
    return found


def _affordable_benches(target: Any, draft: Any, budget: float) -> list[_Bench]:
    """A bench for each possible context, filled; longer ones only where reading them is quick.

    How long that takes is told by the one before.
    """
    first, *others = _possible_contexts(target)
    limit = _READING_SHARE * budget
    benches = [_Bench(target, draft, first)]
    reading = benches[0].fill(limit) / benches[0].length  # seconds per id
    for length in others:
        if length * reading > limit:
            break
        benches.append(_Bench(target, draft, length))
        reading = benches[-1].fill() / length
    return benches


def _possible_contexts(target: Any) -> list[int]:
    """Those of `CONTEXTS` that the target can hold, else what it can hold."""
    room = TargetModelSession(target).context_length - MOST_ROWS
    return [length for length in CONTEXTS if length <= room] or [max(1, room)]


def self_draft_rounds(
    decoder: Decoder,
    prompts: Sequence[str],
    *,
    tokens: int = 40,
    limit: int = 8,
    seconds: float = math.inf,
) -> list[Round]:
    """Decode `tokens` ids after each prompt with long drafts. Returns: the rounds with a draft.

    decoder: one of method `draft`, or one with a recurrent drafter, which proposes chains here.
    limit: draft passes of a round. seconds: no further prompt is begun that would end later, if it
    takes as long as those before it.
    """
    began, found = perf_counter(), list[Round]()
    decoder = replace(decoder, drafting=replace(decoder.drafting, num_draft_tokens=limit))
    session, limits = decoder.open_draft(), Limits(max_tokens=tokens)
    for number, given in enumerate(prompts):
        if number and (perf_counter() - began) * (1 + 1 / number) > seconds:
            break
        prompt, target = decoder.prompt(given, use_template=False), decoder.open_target()
        drafter: Drafter | None
        if decoder.drafter is None:
            drafter = decoder.translated(prompt, session, trees=target.can_branch)
        else:
            shape = BeamShape(1, limit)
            drafter = BeamDrafter(DrafterSession(decoder.drafter, target), shape=shape, whole=True)
        if drafter is not None:
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
        tree, chain = one.tree, one.tree.chain_length
        taken = min(passes, one.draft_passes)
        kept: Sequence[int] = range(len(tree))
        if taken < one.draft_passes:
            count = max(1, round(chain * taken / one.draft_passes)) if chain else 0
            others = (i for i in kept[chain:] if tree.parents[i] < count)
            kept = [*kept[:count], *others]
        seconds += costs.round(len(kept), taken, tree=chain < len(tree))
        tokens += 1 + len(set(one.path).intersection(kept))
    return tokens * costs.verify(1) / seconds
