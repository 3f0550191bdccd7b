"""The free sources and the published ways to draft, on recorded answers of real models.

    python -m lab.benchmarks.recorded_answers MODEL ANSWERS [--temp 0.7]
    python -m lab.benchmarks.free_sources ANSWERS --model MODEL [--numbers 5-12] [--temp 0.7]
        [--curve cpu ...] [--dictionary FILE | --no-dictionary] [--kind KIND]

Drafters, loop and controller are the real ones. A recorded answer plays the target, which tells the
stores the top-k logits of the rows that were accepted. Every answer is decoded with nothing learned
from another one: stores, trust and knowledge are new, and the curve is known. A pass takes what the
curve says, on a clock that nothing else moves; so the speeds are projections without host time.

Rows: kinds of prompts. Columns: tokens and rows per pass of the free sources; their speed relative
to plain decoding, with a 95 % interval (bootstrap over prompts); that of each published way; and
the free sources relative to the fastest of these. Token Recycling and SAM-Decoding draft as many
ids as suits the curve best in hindsight, over all answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from lab.baselines import baseline, store_of
from lab.baselines.trigram_lookup import TrigramLookupDrafter
from lab.benchmarks.paired_lines import bounds, interval, table
from lab.benchmarks.recorded_answers import KINDS, Answer, read_answers, seed_of
from lab.project import SimulatedClock, TimedVerifier
from tokalign.api.choosing import choose_drafting
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.cost import read_curve
from tokalign.runtime.draft.costs import Costs, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.draft.tree import ComingNoise
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, RowStore, Verdict
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

CPU = (1.0, 1.10, 1.17, 1.24, 1.35, 1.45, 1.56, 1.67, *[1.67 + 0.1375 * n for n in range(1, 9)])
"""C(m) of a 1.5B in float32 on two x86-64 cores with OpenBLAS, measured at 2, 4, 8 and 16 rows."""

CURVES = "cpu", "m2-ultra", "m4-pro", "m5-max"
SIZES = 4, 8, 16, 40, 80
OWN = "free"

Make = Callable[[Answer, RowStore | None], Drafter]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft. store: makes its store. make: the drafter for an answer."""

    name: str
    store: Callable[[], RowStore | None]
    make: Make


@dataclass(frozen=True, slots=True)
class Decoded:
    """What decoding an answer took: of every pass its rows, and in all its tokens and time."""

    tokens: int
    rows: tuple[int, ...]
    time: float


class RecordedVerifier:
    """A recorded answer plays the target. store: is told the rows that were accepted."""

    def __init__(self, answer: Answer, store: RowStore | None) -> None:
        self._answer, self._store = answer, store

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `rounds.Verifier`."""
        answer, tree = self._answer, proposal.tree
        at = len(context.ids) - len(answer.prompt)
        path = tree.path_of(answer.ids[at : at + len(tree)])
        ids = tuple(answer.ids[at : at + len(path) + 1])
        if self._store is not None:
            rows, width = slice(at, at + len(ids)), self._store.width
            known = answer.likely[rows, :width], answer.logprobs[rows, :width]
            self._store.learn(context.ids, tree.select(path[: len(ids) - 1]), *known)
        return Verdict(ids=ids, path=tuple(path[: len(ids)]), rows=1 + len(tree))


def decoded(answer: Answer, way: Way, costs: Costs) -> Decoded:
    """Decode an answer under these costs."""
    store, clock = way.store(), SimulatedClock()
    verifier = TimedVerifier(RecordedVerifier(answer, store), costs, clock)
    events = decode(
        Context(answer.prompt),
        way.make(answer, store),
        verifier,
        limits=Limits(max_tokens=len(answer.ids)),
        clock=clock,
    )
    rounds = [one for one in events if isinstance(one, Round)]
    tokens = sum(len(one.emitted) for one in rounds)
    assert tokens == len(answer.ids)
    return Decoded(tokens, tuple([one.rows for one in rounds]), clock.now)


def published() -> Iterator[tuple[str, list[Way]]]:
    """The published ways to draft: of each all draft sizes."""
    yield "look-up", [Way("look-up", lambda: None, lambda *_: TrigramLookupDrafter())]
    yield "PLD", [_baseline("prompt-lookup", None)]
    yield "Recycling", [_baseline("recycling", size) for size in SIZES]
    yield "SAM", [_baseline("sam", size) for size in SIZES[:-1]]


def _baseline(name: str, size: int | None) -> Way:
    return Way(
        f"{name} {size}",
        partial(store_of, name),
        lambda _, store: baseline(name, store, most=size),
    )


def free_sources(drafting: Drafting, costs: Costs, vocabulary: int) -> Way:
    """tokalign's free sources under the controller."""

    def make(answer: Answer, store: RowStore | None) -> Drafter:
        knowledge = Knowledge(costs=LearnedCosts(PassTimes(costs.rows, weight=4)))
        knowledge.rounds = 1  # the times are known, so none are measured first
        known = replace(
            drafting.for_prompt(answer.prompt),
            knowledge=knowledge,
            logits=store,  # type: ignore[arg-type]
            mixing=Mixing(),
        )
        return make_drafter(known, noise=noise_of(answer, vocabulary))

    return Way(OWN, LogitStore, make)


def noise_of(answer: Answer, vocabulary: int) -> ComingNoise | None:
    """The noise that the answer was drawn with."""
    if not answer.temp:
        return None
    from tokalign.runtime.mlx.sampling import Sampling

    seed = seed_of(answer.kind, answer.number)
    return Sampling(temperature=answer.temp, seed=seed).noise_ahead(vocabulary)


def costs_of(curve: str) -> Costs:
    """The costs of a curve in plain passes."""
    known = CPU if curve == "cpu" else read_curve(curve).row_times
    return Costs(rows=tuple(time / known[0] for time in known))


def drafting_for(model: str, dictionaries: Sequence[Path], *, with_packs: bool) -> Drafting:
    """The free sources for a tokenizer, with the dictionaries and packs that it has."""
    options = DraftingOptions(method="hybrid")
    if not with_packs:
        return Drafting(options=options)
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(model).tokenizer
    return choose_drafting(tokenizer, None, replace(options, dictionary=tuple(dictionaries)))


def show(answers: Sequence[Answer], drafting: Drafting, curve: str, *, peers: bool) -> None:
    """Print a table for one curve."""
    costs = costs_of(curve)
    vocabulary = 1 + max(int(answer.likely.max()) for answer in answers)
    own = [decoded(answer, free_sources(drafting, costs, vocabulary), costs) for answer in answers]
    others: dict[str, list[Decoded]] = {}
    for name, ways in published() if peers else ():
        sizes = [[decoded(answer, way, costs) for answer in answers] for way in ways]
        others[name] = min(sizes, key=lambda found: sum(one.time for one in found))
    kinds = [kind for kind in KINDS if any(answer.kind == kind for answer in answers)]
    head = ["", "tokens per pass", "rows", OWN, *others, "free / best"]
    lines = []
    for kind in [*kinds, "all"]:
        chosen = [i for i, answer in enumerate(answers) if kind in (answer.kind, "all")]
        lines.append([kind, *_cells([own[i] for i in chosen], chosen, others)])
    click.echo(f"\n{curve}: C(2, 4, 8, 16) = {[round(costs.verify(m), 2) for m in (2, 4, 8, 16)]}")
    click.echo(table(head, lines))


def _cells(
    own: Sequence[Decoded], chosen: Sequence[int], others: dict[str, list[Decoded]]
) -> list[str]:
    tokens, time = (np.array([getattr(one, what) for one in own]) for what in ("tokens", "time"))
    passes, rows = sum(len(one.rows) for one in own), sum(sum(one.rows) for one in own)
    times = {name: np.array([of[i].time for i in chosen]) for name, of in others.items()}
    speeds = [f"{tokens.sum() / of.sum():.2f}" for of in times.values()]
    best = min(times.values(), key=np.sum, default=tokens)
    low, high = bounds(best, time)
    ratio = f"{best.sum() / time.sum():.3f} ({low:.2f}-{high:.2f})"
    mean = f"{tokens.sum() / passes:.2f}", f"{rows / passes:.1f}"
    return [*mean, interval(tokens, time), *speeds, ratio]


@click.command()
@click.argument("answers", type=click.Path(path_type=Path, exists=True))
@click.option("--model", help="Its tokenizer; for dictionaries and packs.")
@click.option("--numbers", default="5-12", show_default=True, help="Of the prompts of each kind.")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS)
@click.option("--curve", "curves", multiple=True, default=CURVES)
@click.option("--dictionary", "dictionaries", multiple=True, type=click.Path(path_type=Path))
@click.option("--no-dictionary", is_flag=True, help="Copies and the target's own logits alone.")
@click.option("--own-only", is_flag=True, help="Leave out the published ways.")
def main(
    answers: Path,
    model: str | None,
    numbers: str,
    temp: float,
    kinds: Sequence[str],
    curves: Sequence[str],
    dictionaries: Sequence[Path],
    no_dictionary: bool,
    own_only: bool,
) -> None:
    """Print a table for each curve."""
    first, _, last = numbers.partition("-")
    wanted = range(int(first), int(last or first) + 1)
    chosen = [
        answer
        for answer in read_answers(answers)
        if answer.temp == temp and answer.kind in kinds and answer.number in wanted
    ]
    with_packs = model is not None and not no_dictionary
    drafting = drafting_for(model or "", dictionaries, with_packs=with_packs)
    for curve in curves:
        show(chosen, drafting, curve, peers=not own_only)


if __name__ == "__main__":
    main()
