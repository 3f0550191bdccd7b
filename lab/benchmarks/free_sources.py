"""The free sources and the published ways to draft, on recorded answers of real models.

    python -m lab.benchmarks.recorded_answers MODEL ANSWERS [--temp 0.7]
    python -m lab.benchmarks.free_sources ANSWERS --model MODEL [--numbers 5-12] [--temp 0.7]
        [--curve cpu ...] [--dictionary FILE | --no-dictionary] [--kind KIND]
        [--draft MODEL --draft-pass 0.12 --tree-pass 0.22] [--delays 0.25] [--session]

Drafters, loop and controller are the real ones. A recorded answer plays the target, which tells the
stores the top-k logits of the rows that were accepted. Every answer is decoded with nothing learned
from another one: stores have what a table of the target's logits holds, where one is found, trust
and knowledge are new, and the curve is known. With --session the answers are those of one session
of `tokalign serve`, the first of every kind, then the second: stores, trust, knowledge and answers
to copy from are kept, and the stores of published ways. A pass takes what the
curve says, on a clock that nothing else moves; so the speeds are projections without host time.

Rows: kinds of prompts. Columns: tokens and rows per pass of the free sources; their speed relative
to plain decoding, with a 95 % interval (bootstrap over prompts); that of each published way; and
the free sources relative to the fastest of these. Published trees draft as many ids as suits the
curve best in hindsight, over all answers; the number is in the head. With --draft, which is
computed, the hybrid of a draft model and the free sources has columns of its own, and its speed
relative to the free sources alone stands beside it; --draft-pass and --tree-pass are its passes in
plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import click
import numpy as np
from numpy.typing import NDArray

from lab.baselines import baseline, store_of
from lab.baselines.trigram_lookup import TrigramLookupDrafter
from lab.benchmarks.paired_lines import bounds, interval, table
from lab.benchmarks.real_prompts import EVERY_KIND, KINDS
from lab.benchmarks.real_replay import TimedModel
from lab.benchmarks.recorded_answers import Answer, chosen_answers, seed_of
from lab.project import DelayedClock, SimulatedClock, TimedVerifier
from lab.round_costs import RoundCosts
from tokalign.api.assemble import load_models
from tokalign.api.choosing import choose_drafting
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.chat import Prompt
from tokalign.runtime.cost import read_curve
from tokalign.runtime.draft.costs import MAX_DRAFT, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import NO_TIME, Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFT
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.drafting import Drafting, make_drafter, make_model_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.noise import NoiseAhead
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, RowStore, Verdict
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_TWO_CORES = 1.0, 1.10, 1.17, 1.24, 1.35, 1.45, 1.56, 1.67
_ONE_CORE = np.interp(range(1, 17), (1, 3, 4, 8, 16), (1.0, 1.04, 1.07, 1.25, 1.58))

CPU = {
    "cpu": (*_TWO_CORES, *[1.67 + 0.1375 * n for n in range(1, 9)]),
    "cpu-one-thread": tuple(_ONE_CORE.tolist()),
}
"""C(m) of a 1.5B in float32 on an x86-64 CPU with OpenBLAS, measured at 2, 4, 8 and 16 rows."""

CURVES = "cpu", "m2-ultra", "m4-pro", "m5-max"
SIZES = 1, 2, 4, 8, 16, 40, 80
OWN, HYBRID = "free", "hybrid"

Make = Callable[[Answer, RowStore | None, SimulatedClock], Drafter]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft. store: its store for an answer. make: the drafter for one. done: is told of
    it."""

    name: str
    store: Callable[[], RowStore | None]
    make: Make
    done: Callable[[Answer], None] = lambda _: None

    def kept(self) -> Way:
        """The same with one store for all answers."""
        store = self.store()
        return replace(self, store=lambda: store)


class Session:
    """What is kept between the answers of a session."""

    def __init__(self, costs: RoundCosts, draft: Draft | None) -> None:
        self.outputs, self.mixing = OutputStore(), Mixing()
        drafts = {}
        if draft is not None:
            times = [costs.drafting(passes, tree=True) for passes in range(1, 1 + MAX_DRAFT)]
            reading = PassTimes([max(NO_TIME, costs.reading)], weight=4)
            drafts[DRAFT] = ModelKnowledge(PassTimes(times, weight=4), reading=reading)
        known = LearnedCosts(PassTimes(costs.rows, weight=4))
        self.knowledge = Knowledge(costs=known, models=drafts)
        self.knowledge.rounds = 1  # the times are known, so none are measured first


@dataclass(frozen=True, slots=True)
class Decoded:
    """What decoding an answer took: of every pass its rows, and in all its tokens, time and passes
    of the draft model."""

    tokens: int
    rows: tuple[int, ...]
    drafts: int
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


def decoded(answer: Answer, way: Way, costs: RoundCosts, delays: float = 0.0) -> Decoded:
    """Decode an answer under these costs. delays: as of `DelayedClock`; its time is without them,
    so it tells what they make the controller decide."""
    store, clock = way.store(), DelayedClock(delays, Random(answer.number))
    verifier = TimedVerifier(RecordedVerifier(answer, store), costs, clock)
    events = Decoding(
        Context(answer.prompt),
        way.make(answer, store, clock),
        verifier,
        limits=Limits(max_tokens=len(answer.ids)),
        clock=clock,
    )
    rounds = [one for one in events if isinstance(one, Round)]
    tokens = sum(len(one.emitted) for one in rounds)
    assert tokens == len(answer.ids)
    way.done(answer)
    drafts = sum(one.draft_passes for one in rounds)
    return Decoded(tokens, tuple([one.rows for one in rounds]), drafts, clock.undelayed)


def published() -> Iterator[list[Way]]:
    """The published ways to draft: of each all draft sizes."""
    yield [Way("look-up", lambda: None, lambda *_: TrigramLookupDrafter())]
    yield [_baseline("PLD", "prompt-lookup", None)]
    for title, name in (("Recycling", "recycling"), ("SAM", "sam"), ("UniSpec", "unispec")):
        yield [_baseline(f"{title} {size}", name, size) for size in SIZES]


def _baseline(title: str, name: str, size: int | None) -> Way:
    return Way(
        title,
        partial(store_of, name),
        lambda _, store, __: baseline(name, store, most=size),
    )


def free_sources(
    drafting: Drafting,
    costs: RoundCosts,
    vocabulary: int,
    draft: Draft | None = None,
    *,
    kept: bool = False,
) -> Way:
    """tokalign's sources under the controller. draft: a draft model besides the free ones. kept:
    all answers are of one session; else each has its own."""
    new = partial(Session, costs, draft)
    session = new()

    def store() -> RowStore:
        nonlocal session
        session = session if kept else new()
        return session.outputs.logits

    def make(answer: Answer, _: RowStore | None, clock: SimulatedClock) -> Drafter:
        models = [] if draft is None else [draft.after(answer, drafting, costs, clock)]
        known = replace(
            drafting.for_prompt(answer.prompt),
            knowledge=session.knowledge,
            logits=session.outputs.logits,
            mixing=session.mixing,
            outputs=(session.outputs.text,) if kept else (),
        ).with_stores(vocabulary)
        return make_drafter(known, *models, noise=noise_of(answer, vocabulary))

    def done(answer: Answer) -> None:
        session.outputs.add(answer.ids)

    return Way(OWN if draft is None else HYBRID, store, make, done)


class Draft:
    """A draft model that is computed, while its passes take what the costs say.

    It reads the target's prompt, special tokens matched by role. size: how many ids the target has.
    """

    def __init__(self, name: str, target: Tokenizer[TargetId], size: int) -> None:
        [loaded] = load_models([name], dtype="float32")
        self.tokenizer: Tokenizer[DraftId] = loaded.tokenizer
        self._model, self._size = loaded.model, size
        self._pair = Pair(target, self.tokenizer, size)

    def after(
        self, answer: Answer, drafting: Drafting, costs: RoundCosts, clock: SimulatedClock
    ) -> TimedModel:
        """Its drafter for an answer."""
        prompt = Prompt(target=answer.prompt)
        sampler = sampling_of(answer).draft_sampler
        session = DraftModelSession(self._model)
        model = make_model_drafter(drafting, self._pair, prompt, session, sampler)
        return TimedModel(model, costs, clock)


def sampling_of(answer: Answer) -> Sampling:
    """How the answer was chosen."""
    return Sampling(temperature=answer.temp, seed=seed_of(answer.kind, answer.number))


def noise_of(answer: Answer, vocabulary: int) -> NoiseAhead | None:
    """The noise that the answer was drawn with."""
    return sampling_of(answer).noise_ahead(vocabulary) if answer.temp else None


def costs_of(
    curve: str, draft_pass: float = 0.0, tree_pass: float | None = None, reading: float = 0.0
) -> RoundCosts:
    """The costs of a curve in plain passes."""
    known = CPU[curve] if curve in CPU else read_curve(curve).row_times
    rows = tuple(time / known[0] for time in known)
    return RoundCosts(rows=rows, draft_pass=draft_pass, tree_pass=tree_pass, reading=reading)


def drafting_for(
    tokenizer: Tokenizer[TargetId] | None,
    dictionaries: Sequence[Path],
    draft: Tokenizer[DraftId] | None = None,
) -> Drafting:
    """The free sources for a tokenizer, with the dictionaries and packs that it has; without a
    tokenizer, copies and the target's own logits. draft: the tokenizer of a draft model."""
    options = DraftingOptions(method="hybrid")
    if tokenizer is None:
        return Drafting(options=options)
    return choose_drafting(tokenizer, draft, replace(options, dictionary=tuple(dictionaries)))


def show(
    answers: Sequence[Answer],
    ways: Sequence[Way],
    curve: str,
    costs: RoundCosts,
    *,
    peers: bool,
    delays: float,
    session: bool,
) -> None:
    """Print a table for one curve. ways: the free sources, and the hybrid if there is a draft."""
    others: dict[str, list[Decoded]] = {}
    own = {way.name: [decoded(answer, way, costs, delays) for answer in answers] for way in ways}
    for sizes in published() if peers else ():
        asked = [way.kept() for way in sizes] if session else sizes
        found = {way.name: [decoded(answer, way, costs) for answer in answers] for way in asked}
        best = min(found, key=lambda name: sum(one.time for one in found[name]))
        others[best] = found[best]
    kinds = [kind for kind in EVERY_KIND if any(answer.kind == kind for answer in answers)]
    head = ["", "tokens per pass", "rows", OWN, *others, "free / best"]
    if HYBRID in own:
        head += ["tokens per pass", "rows", "draft passes", HYBRID, "hybrid / free"]
    lines = []
    for kind in [*kinds, "all"]:
        chosen = [i for i, answer in enumerate(answers) if kind in (answer.kind, "all")]
        lines.append([kind, *_cells([own[OWN][i] for i in chosen], chosen, others)])
        if HYBRID in own:
            lines[-1] += _hybrid_cells(*([own[name][i] for i in chosen] for name in (HYBRID, OWN)))
    click.echo(f"\n{curve}: C(2, 4, 8, 16) = {[round(costs.verify(m), 2) for m in (2, 4, 8, 16)]}")
    click.echo(table(head, lines))


def _cells(
    own: Sequence[Decoded], chosen: Sequence[int], others: dict[str, list[Decoded]]
) -> list[str]:
    times = {name: np.array([of[i].time for i in chosen]) for name, of in others.items()}
    tokens = np.array([one.tokens for one in own])
    speeds = [f"{tokens.sum() / of.sum():.2f}" for of in times.values()]
    best = min(times.values(), key=np.sum, default=tokens)
    mean, speed = _figures(own)
    return [*mean, speed, *speeds, _relative(best, own)]


def _hybrid_cells(own: Sequence[Decoded], free: Sequence[Decoded]) -> list[str]:
    mean, speed = _figures(own)
    drafts = sum(one.drafts for one in own) / sum(len(one.rows) for one in own)
    return [*mean, f"{drafts:.2f}", speed, _relative(np.array([one.time for one in free]), own)]


def _figures(own: Sequence[Decoded]) -> tuple[list[str], str]:
    """Tokens and rows per pass; the speed with its interval."""
    tokens, time = (np.array([getattr(one, what) for one in own]) for what in ("tokens", "time"))
    passes, rows = sum(len(one.rows) for one in own), sum(sum(one.rows) for one in own)
    return [f"{tokens.sum() / passes:.2f}", f"{rows / passes:.1f}"], interval(tokens, time)


def _relative(times: NDArray[np.float64], own: Sequence[Decoded]) -> str:
    time = np.array([one.time for one in own])
    low, high = bounds(times, time)
    return f"{times.sum() / time.sum():.3f} ({low:.2f}-{high:.2f})"


@click.command()
@click.argument("answers", type=click.Path(path_type=Path, exists=True))
@click.option("--model", help="Its tokenizer; for dictionaries and packs.")
@click.option("--numbers", default="5-12", show_default=True, help="Of the prompts of each kind.")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(EVERY_KIND), default=KINDS)
@click.option("--curve", "curves", multiple=True, default=CURVES)
@click.option("--dictionary", "dictionaries", multiple=True, type=click.Path(path_type=Path))
@click.option("--no-dictionary", is_flag=True, help="Copies and the target's own logits alone.")
@click.option("--own-only", is_flag=True, help="Leave out the published ways.")
@click.option("--delays", default=0.0, help="Of passes: sigma of a log-normal factor.")
@click.option("--session", is_flag=True, help="Keep what is learned from answer to answer.")
@click.option("--draft", "draft_name", help="A draft model for the hybrid.")
@click.option("--draft-pass", default=0.12, show_default=True, help="In plain passes.")
@click.option(
    "--tree-pass", default=0.22, show_default=True, help="The same where it grows a tree."
)
@click.option(
    "--reading", default=0.0, help="The draft model reads an id of the prompt; in plain passes."
)
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
    delays: float,
    session: bool,
    draft_name: str | None,
    draft_pass: float,
    tree_pass: float,
    reading: float,
) -> None:
    """Print a table for each curve."""
    chosen = chosen_answers(answers, numbers, temp=temp, kinds=kinds)
    if session:
        chosen.sort(key=lambda answer: answer.number)
    tokenizer: Tokenizer[TargetId] | None = resolve_tokenizer(model).tokenizer if model else None
    named = 1 + max(int(answer.likely.max()) for answer in chosen)
    size = max(named, len(tokenizer.vocabulary) if tokenizer else 0)
    own = None if no_dictionary else tokenizer
    drafting, hybrid, draft = drafting_for(own, dictionaries), None, None
    if draft_name is not None:
        if tokenizer is None:
            raise click.UsageError("--draft needs --model, for its tokenizer")
        draft = Draft(draft_name, tokenizer, size)
        hybrid = drafting_for(tokenizer, dictionaries, draft.tokenizer)
    for curve in curves:
        costs = costs_of(curve, draft_pass, tree_pass, reading)
        ways = [free_sources(drafting, costs, size, kept=session)]
        if hybrid is not None:
            ways.append(free_sources(hybrid, costs, size, draft, kept=session))
        show(chosen, ways, curve, costs, peers=not own_only, delays=delays, session=session)


if __name__ == "__main__":
    main()
