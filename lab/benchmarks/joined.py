"""A draft model in one tree with the free sources: what it adds, by rows and under cost curves.

    python -m lab.benchmarks.joined --target MODEL --draft-model MODEL --prompts FILE [--limit 10]
        [--rows 4,7,15] [--curve m4-pro ...] [--cache FILE] [--answers FILE]

The target decodes its own output, as in `draft_free.py`. The draft model is asked once at every
position for 1 to 3 passes, and its answers are played to every condition, so that all see the same
ones. The logit store is kept from request to request.

The first table has tokens per pass at fixed numbers of drafted ids. The second one has speed-ups
under cost curves, on a clock that only passes move, with what the controller makes of
the free sources, of the model, and of both. A pass of the draft model takes `--draft-pass` plain
passes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from lab.benchmarks.draft_free import MACHINES
from lab.benchmarks.own_outputs import OwnOutputs, own_outputs
from lab.benchmarks.remembered_target import RememberingVerifier, Text
from lab.project import SimulatedClock, TimedVerifier
from lab.round_costs import RoundCosts
from tokalign.api.assemble import keep_loaded, load_models
from tokalign.api.choosing import pair_tables
from tokalign.runtime.chat import Prompt
from tokalign.runtime.cost import read_curve
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge, new_worth
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.neural import DRAFT, ModelDrafter, NeuralDrafter
from tokalign.runtime.draft.tree import FREE_ROWS
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.drafting import Drafting, make_drafter, make_model_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.noise import NoiseAhead
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import DEFAULT_ALTERNATIVES, DraftingOptions
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, Verifier
from tokalign.runtime.translation.base import Pair
from tokalign.tables.opening import open_dictionary
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId

MOST_PASSES = 3


@dataclass(frozen=True)
class DraftModels:
    """Makes drafters, each for one text of the target."""

    target: LanguageModel[TargetId]
    model: LanguageModel[DraftId]
    pair: Pair
    drafting: Drafting

    @classmethod
    def load(
        cls,
        target: LanguageModel[TargetId],
        name: str,
        num_draft_tokens: int,
        alternatives: int = DEFAULT_ALTERNATIVES,
    ) -> DraftModels:
        """Load the model, and the pair's tables."""
        model: Any
        [model] = load_models([name], dtype="float32")
        pair = Pair(target.tokenizer, model.tokenizer)
        options = DraftingOptions(
            method="draft",
            translation="exact",
            num_draft_tokens=num_draft_tokens,
            alternatives=alternatives,
        )
        drafting = Drafting(
            options=options,
            alignment=pair_tables(pair.target, pair.draft),
        )
        return cls(target, model, pair, drafting)

    def drafter(self, text: Text) -> NeuralDrafter:
        """A drafter for one text, which predicts what its target draws."""
        found = make_model_drafter(
            self.drafting,
            self.pair,
            Prompt(target=text.ids[: text.given]),
            DraftModelSession(self.model.model),
            text.sampler.draft_sampler,
        )
        assert isinstance(found, NeuralDrafter)
        return found


@dataclass(frozen=True, slots=True)
class Answers:
    """All that a draft model found at the positions of a text, by position and number of passes."""

    found: dict[tuple[int, int], TokenTree[TargetId]]

    @classmethod
    def record(cls, models: DraftModels, text: Text, tokens: int) -> Answers:
        """Ask at every position."""
        found = {}
        for steps in range(1, MOST_PASSES + 1):
            drafter, context = models.drafter(text), Context(text.ids[: text.given])
            for end in range(text.given, text.given + tokens):
                found[end, steps] = drafter.draft(context, steps=steps, limit=32).tree
                context.extend([text.ids[end]])
        return cls(found)


class RecordedModel(ModelDrafter):
    """Answers as the draft model did.

    steps: passes of a round that does not say. took: is told the number of passes of every answer.
    """

    def __init__(
        self, answers: Answers, steps: int, took: Callable[[int], None] = lambda _: None
    ) -> None:
        self.passes = 0
        super().__init__(self, steps, DEFAULT_ALTERNATIVES)
        self._answers, self._took = answers, took

    def find(self, context: Context, steps: int) -> Proposal:
        steps = min(steps, MOST_PASSES)
        self.passes += steps
        self._took(steps)
        return Proposal(tree=self._answers.found[len(context.ids), steps])


@dataclass
class World:
    """What all conditions share."""

    session: TargetModelSession
    vocabulary: int
    texts: Sequence[Text]
    answers: Sequence[Answers]
    tokens: int
    base: Drafting

    def rounds(
        self,
        make: Callable[[Answers, Drafting, NoiseAhead | None], Drafter],
        timed: Callable[[Verifier], Verifier] = lambda verifier: verifier,
        *,
        options: Mapping[str, object] = MappingProxyType({}),
        clock: Callable[[], float] = perf_counter,
        **drafting: object,
    ) -> Iterator[Round]:
        """The rounds of all texts, with stores that are kept from one to the next.

        timed: gives a verifier whose passes take time. options: other ones than the usual.
        """
        store = LogitStore()
        how = replace(
            self.base.with_options(**options),
            logits=store,
            mixing=Mixing(),
            model_worth=new_worth(),
            **drafting,  # type: ignore[arg-type]
        )
        for text, answers in zip(self.texts, self.answers, strict=True):
            verifier = timed(RememberingVerifier(self.session, text, store))
            drafter = make(answers, how, text.noise(self.vocabulary))
            context = Context(text.ids[: text.given])
            limits = Limits(max_tokens=min(self.tokens, len(text.output)))
            events = Decoding(context, drafter, verifier, limits=limits, clock=clock)
            found = [event for event in events if isinstance(event, Round)]
            assert context.emitted == text.output[: len(context.emitted)], "an output has changed"
            yield from found


def fixed_rows(world: World, counts: Sequence[int], steps: int) -> None:
    """Tokens per pass at fixed numbers of drafted ids."""
    click.echo("| | " + " | ".join(map(str, counts)) + " |")
    click.echo("|---" * (1 + len(counts)) + "|")

    def free(_: Answers, how: Drafting, noise: NoiseAhead | None) -> Drafter:
        return make_drafter(how, noise=noise)

    def both(answers: Answers, how: Drafting, noise: NoiseAhead | None) -> Drafter:
        return make_drafter(how, RecordedModel(answers, steps), noise=noise)

    for name, make in (("free sources", free), (f"and the draft model, K = {steps}", both)):
        cells = []
        for count in counts:
            rounds = list(world.rounds(make, options={"draft_rows": count}, costs=FREE_ROWS))
            emitted = sum(len(one.emitted) for one in rounds)
            cells.append(f"{emitted / len(rounds):.3f}")
        click.echo(f"| {name} | {' | '.join(cells)} |")
    rounds = list(world.rounds(lambda answers, *_: RecordedModel(answers, steps)))
    emitted, rows = sum(len(one.emitted) for one in rounds), sum(one.rows for one in rounds)
    click.echo(
        f"the draft model alone: {emitted / len(rounds):.3f} with {rows / len(rounds) - 1:.1f} ids"
    )


def machines(world: World, curves: Sequence[str], draft_pass: float, steps: int) -> None:
    """Speed-ups under cost curves; each cell ends with ids and draft passes of a round."""
    names = ("free, auto", "model, auto", "all, auto", f"all, K = {steps}")
    click.echo(f"| | {' | '.join(names)} |")
    click.echo("|---" * (1 + len(names)) + "|")
    for name in curves:
        known = read_curve(name).row_times
        costs = RoundCosts(rows=tuple(time / known[0] for time in known), draft_pass=draft_pass)
        cells = [
            controlled(world, costs, method="hybrid", with_model=False),
            controlled(world, costs, method="draft", with_model=True),
            controlled(world, costs, method="hybrid", with_model=True),
            cost_aware(world, costs, steps),
        ]
        click.echo(f"| {name} | {' | '.join(cells)} |")


def controlled(world: World, costs: RoundCosts, *, method: str, with_model: bool) -> str:
    """What the controller makes of the sources, if it knows the costs."""
    clock = SimulatedClock()
    times = [n * costs.draft_pass for n in range(1, MOST_PASSES + 1)]
    models = {DRAFT: ModelKnowledge(PassTimes(times, weight=4))}
    learned = LearnedCosts(PassTimes(costs.rows, weight=4))
    knowledge = Knowledge(costs=learned, models=models)

    def took(passes: int) -> None:
        clock.now += passes * costs.draft_pass

    def make(answers: Answers, how: Drafting, noise: NoiseAhead | None) -> Drafter:
        models = [RecordedModel(answers, MOST_PASSES, took)] if with_model else []
        return make_drafter(how, *models, noise=noise)

    timed = partial(TimedVerifier, costs=costs, clock=clock)
    how = {"method": method}
    rounds = list(world.rounds(make, timed, options=how, clock=clock, knowledge=knowledge))
    return cell(rounds, costs, clock.now)


def cost_aware(world: World, costs: RoundCosts, steps: int) -> str:
    """What the cost-aware hybrid makes of them."""

    def make(answers: Answers, how: Drafting, noise: NoiseAhead | None) -> Drafter:
        return make_drafter(how, RecordedModel(answers, steps), noise=noise)

    rounds = list(world.rounds(make, costs=costs))
    time = sum(costs.verify(one.rows) + one.draft_passes * costs.draft_pass for one in rounds)
    return cell(rounds, costs, time)


def cell(rounds: Sequence[Round], costs: RoundCosts, time: float) -> str:
    """The speed-up, and what a round has on average."""
    emitted = sum(len(one.emitted) for one in rounds)
    ids = sum(one.rows - 1 for one in rounds) / len(rounds)
    passes = sum(one.draft_passes for one in rounds) / len(rounds)
    return f"{emitted * costs.verify(1) / time:.3f}, {ids:.1f}, {passes:.1f}"


@click.command()
@own_outputs
@click.option("--draft-model", required=True)
@click.option("-k", "--num-draft-tokens", "steps", default=2, show_default=True)
@click.option("--draft-pass", default=0.07, show_default=True, help="In plain passes.")
@click.option("--rows", default="4,7,15", show_default=True)
@click.option("--curve", "curves", multiple=True, default=MACHINES)
@click.option("--answers", "kept", type=click.Path(path_type=Path), help="Recorded answers.")
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True), help="Default: found.")
def benchmark(
    outputs: OwnOutputs,
    *,
    draft_model: str,
    steps: int,
    draft_pass: float,
    rows: str,
    curves: Sequence[str],
    kept: Path | None,
    dictionary: Path | None,
) -> None:
    """Print both tables."""
    model, texts, tokens = outputs.model, outputs.texts, outputs.tokens
    keep_loaded()
    if kept is not None and kept.exists():
        answers: list[Answers] = pickle.loads(kept.read_bytes())
    else:
        models = DraftModels.load(model, draft_model, steps)
        answers = [
            Answers.record(models, text, tokens)
            for text in track(texts, "asking", console=Console(stderr=True), transient=True)
        ]
        if kept is not None:
            kept.write_bytes(pickle.dumps(answers))
    table = open_dictionary(model.tokenizer, files=[dictionary] if dictionary else [])
    base = Drafting(options=DraftingOptions(method="hybrid"), dictionary=table)
    world = World(
        TargetModelSession(model.model),
        vocabulary_size(model.model),
        texts,
        answers[: len(texts)],
        tokens,
        base,
    )
    if outputs.only != "machines":
        fixed_rows(world, [int(count) for count in rows.split(",")], steps)
        outputs.save()
    if outputs.only != "rows":
        machines(world, curves, draft_pass, steps)
        outputs.save()


if __name__ == "__main__":
    benchmark()
