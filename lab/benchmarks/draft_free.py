"""Drafting without a draft model, in real decoding: tokalign's trees and the published ones.

    python -m lab.benchmarks.draft_free rows --target MODEL --prompts FILE [--rows 4,7,15,31] \
        [--empty]
    python -m lab.benchmarks.draft_free rows --target MODEL --text FILE [...]
    python -m lab.benchmarks.draft_free machines --target MODEL --prompts FILE [--curve m4-pro ...]
    python -m lab.benchmarks.draft_free ablations --target MODEL --prompts FILE [--limit 10]

`rows` gives tokens per pass for every method at fixed numbers of drafted ids; `machines` what fixed
numbers and the controller make of the hybrid under cost curves, on a clock that
nothing but passes moves; `ablations` UniSpec's ablations and projected speed-ups. The target
decodes its own output; every output is compared with plain decoding's, and any difference ends the
run. With --text, a text plays the target's output. Each prompt has a seed of its own. Stop ids are
ignored, so that all texts have the same length. Stores are kept from request to request, or emptied
with --empty. Rows that one condition has computed are remembered for the others
(`remembered_target.py`), and in --cache for further runs.

UniSpec's draft size is calibrated for every curve as its appendix F says: some draft sizes from one
id on decode the calibration prompts (the last ones of the file), a cubic is fitted to their tokens
per pass and B-splines to the time of a pass, and the best ratio is taken. The paper's table 17
calibrates Token Recycling in this way too; here all published trees are. Nothing is timed: passes
cost what a curve says. Beyond a curve's end its last step goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import click

from lab.baselines import baseline, store_of
from lab.baselines.adjacency import Adjacency
from lab.baselines.unispec import (
    ABLATED,
    UNCALIBRATED_SIZE,
    UNISPEC_WIDTH,
    Expansion,
    UniSpecDrafter,
    calibrated_size,
)
from lab.benchmarks.own_outputs import OwnOutputs, own_outputs
from lab.benchmarks.remembered_target import RememberingVerifier
from lab.project import SimulatedClock, TimedVerifier
from lab.round_costs import RoundCosts
from tokalign.api.assemble import keep_loaded
from tokalign.runtime.cost import read_curve
from tokalign.runtime.draft.costs import LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.tree import FREE_ROWS
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.noise import NoiseAhead
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context, Drafter, Round, RowStore, Verifier
from tokalign.runtime.statistics import Statistics
from tokalign.tables.opening import open_dictionary, open_logit_rows
from tokalign.tokenizer.vocabulary import TargetId

CALIBRATION_SIZES = (*range(1, 9), 10, 12, 16, 24, 32, 48, 64, 80, 96, 110)
"""Draft sizes that are measured: so many that no spline lacks points, and dense where rows are few.

With a handful of sizes the fitted time of a pass has dips between them, and the rule falls in.
"""
CALIBRATION_PROMPTS, CALIBRATION_TOKENS = 5, 100
SMALL = (1, 2, 3, 4, 6, 8)

NO_EXPANSION = ABLATED["expansion"]
UNSCORED = ABLATED["scores"]
THRESHOLDS = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2)

MACHINES = ("m2-pro", "m3-max", "m4-pro", "m4-pro-8-bit", "m5-max")
WIDE = ("m3-max", "m4-pro-8-bit", "m5-max")
"""Those of which 16 rows or more were published: what wide trees are judged by."""

TRAINING = 10
"""The first prompts, which weights may have been fitted to."""

Maker = Callable[[RowStore | None, NoiseAhead | None], Drafter]


@dataclass(frozen=True)
class Condition:
    """A way to draft: what makes its store, and the drafter of a request from a store
    and the noise of the coming choices.

    timed: gives a verifier whose passes take time on `clock`.
    """

    store: Callable[[], RowStore | None]
    make: Maker
    timed: Callable[[Verifier], Verifier] = lambda verifier: verifier
    clock: Callable[[], float] = perf_counter


@dataclass
class Found:
    """What a condition took: statistics of its rounds, and how many passes had how many rows."""

    statistics: Statistics = field(default_factory=Statistics)
    rows: list[int] = field(default_factory=list)
    of_text: list[tuple[int, int]] = field(default_factory=list)  # tokens and passes

    def speedup(self, costs: RoundCosts) -> float:
        """Against one pass per token, if passes are all that takes time."""
        time = sum(costs.verify(rows) for rows in self.rows)
        return self.statistics.generation_tokens * costs.verify(1) / time

    def tokens_per_pass(self, first: int = 0) -> float:
        """Over the texts from the index `first` on."""
        tokens, passes = map(sum, zip(*self.of_text[first:], strict=True))
        return tokens / passes

    @property
    def drafted(self) -> float:
        """Ids drafted in a round."""
        return sum(self.rows) / len(self.rows) - 1


def decoded(outputs: OwnOutputs, condition: Condition, found: Found) -> Iterator[list[TargetId]]:
    """Decode every text, and add what it took to `found`."""
    session = TargetModelSession(outputs.model.model)
    store, vocabulary = condition.store(), vocabulary_size(outputs.model.model)
    for text in outputs.texts:
        store = condition.store() if outputs.empty else store
        context = Context(text.ids[: text.given])
        drafter = condition.make(store, text.noise(vocabulary))
        verifier = condition.timed(RememberingVerifier(session, text, store))
        limits = Limits(max_tokens=min(outputs.tokens, len(text.output)))
        passes = len(found.rows)
        for event in Decoding(context, drafter, verifier, limits=limits, clock=condition.clock):
            found.statistics.observe(event)
            if isinstance(event, Round):
                found.rows.append(event.rows)
        found.of_text.append((len(context.emitted), len(found.rows) - passes))
        yield list(context.emitted)


def measured(outputs: OwnOutputs, condition: Condition) -> Found:
    """What a condition takes. Ends the run if it changes an output."""
    found = Found()
    for text, output in zip(outputs.texts, decoded(outputs, condition, found), strict=True):
        if output != text.output[: outputs.tokens]:
            sys.exit("an output has changed")
    return found


def drafting_as(drafting: Drafting) -> Condition:
    """A way to draft that tokalign has."""

    def make(store: RowStore | None, noise: NoiseAhead | None) -> Drafter:
        known = replace(drafting, logits=store)  # type: ignore[arg-type]
        return make_drafter(known, noise=noise)

    return Condition(lambda: drafting.with_stores().row_store, make)


def methods(base: Drafting) -> dict[str, Callable[[int], Condition]]:
    """By name: the condition for a number of drafted ids."""

    def of(method: str) -> Callable[[int], Condition]:
        return lambda most: drafting_as(base.with_options(method=method, num_draft_tokens=most))

    def hybrid(most: int) -> Drafting:
        return base.with_options(method="hybrid", draft_rows=most)

    def storeless(most: int) -> Condition:
        how = hybrid(most)
        return Condition(lambda: None, lambda _, noise: make_drafter(how, noise=noise))

    return {
        "prompt lookup": published("prompt-lookup"),
        "Token Recycling": published("recycling"),
        "SAM-Decoding": published("sam"),
        "UniSpec": published("unispec"),
        "context copy": of("copy"),
        **({} if base.dictionary is None else {"dictionary": of("dictionary")}),
        "hybrid, no store": storeless,
        "hybrid, no dictionary": lambda most: drafting_as(replace(hybrid(most), dictionary=None)),
        "hybrid": lambda most: drafting_as(hybrid(most)),
    }


Sized = Callable[[int], Condition]
"""The condition of a number of drafted ids."""


def published(name: str) -> Callable[[int | None], Condition]:
    """A baseline; without a number of ids it drafts as many as were published."""
    return lambda size: Condition(
        lambda: store_of(name), lambda store, _: baseline(name, store, most=size)
    )


def unispec(expansion: Expansion, size: int) -> Condition:
    """UniSpec with a tree that is grown in another way."""
    make = partial(UniSpecDrafter, size=size, expansion=expansion)
    return Condition(lambda: Adjacency(UNISPEC_WIDTH), lambda store, _: make(store))  # type: ignore[arg-type]


CALIBRATED = {
    "UniSpec": published("unispec"),
    "Token Recycling": published("recycling"),
    "SAM-Decoding": published("sam"),
}


def fixed_trees(size: int) -> dict[str, Condition]:
    """Published ways to draft as much on every machine, and UniSpec's ablations. size: its g."""
    tree = Expansion()
    return {
        "prompt lookup": published("prompt-lookup")(None),
        "Token Recycling": published("recycling")(None),
        "SAM-Decoding": published("sam")(None),
        f"UniSpec, g = {UNCALIBRATED_SIZE}": unispec(tree, UNCALIBRATED_SIZE),
        f"UniSpec, g = {size}": unispec(tree, size),
        "without score estimation": unispec(UNSCORED, size),
        "without tree expansion": unispec(NO_EXPANSION, size),
        "without next-next candidates": unispec(replace(tree, next_next=False), size),
        **{f"r = {r:g}": unispec(replace(tree, threshold=r), size) for r in THRESHOLDS},
    }


@click.group()
def benchmark() -> None:
    """Measure drafting without a draft model."""


@benchmark.command("rows")
@own_outputs
@click.option("--rows", default="4,7,15,31", show_default=True, help="Drafted ids.")
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True), help="Default: found.")
@click.option("--logits", is_flag=True, help="Stores begin with a table that is found.")
def rows_command(
    outputs: OwnOutputs,
    *,
    rows: str,
    dictionary: Path | None,
    logits: bool,
) -> None:
    """Print tokens per pass of every method at each number of drafted ids.

    After a slash: without the first ten texts, which weights may have been fitted to.
    """
    tokenizer = outputs.model.tokenizer
    counts = [int(count) for count in rows.split(",")]
    base = Drafting(
        dictionary=open_dictionary(tokenizer, files=[dictionary] if dictionary else []),
        known_rows=open_logit_rows(tokenizer) if logits else None,
        costs=FREE_ROWS,
    )
    keep_loaded()
    click.echo(f"| | {' | '.join(rows.split(','))} | drafted | host ms p50, p99 |")
    click.echo("|---" * (3 + len(counts)) + "|")
    for name, condition in methods(base).items():
        if not outputs.wants(name):
            continue
        of_rows = [measured(outputs, condition(count)) for count in counts]
        cells = [f"{found.tokens_per_pass():.3f}" for found in of_rows]
        if len(outputs.texts) > TRAINING:
            cells = [
                f"{cell} / {found.tokens_per_pass(TRAINING):.3f}"
                for cell, found in zip(cells, of_rows, strict=True)
            ]
        drafted = ", ".join(f"{found.drafted:.1f}" for found in of_rows)
        host = "; ".join(
            "{p50:.2f}, {p99:.2f}".format(**found.statistics.host_ms_per_round) for found in of_rows
        )
        click.echo(f"| {name} | {' | '.join(cells)} | {drafted} | {host} |")
        outputs.save()


@benchmark.command("machines")
@own_outputs
@click.option("--rows", default="1,2,3,4,7,15,31", show_default=True, help="Drafted ids.")
@click.option("--curve", "curves", multiple=True, default=MACHINES)
def machines_command(
    outputs: OwnOutputs,
    *,
    rows: str,
    curves: tuple[str, ...],
) -> None:
    """Print speed-ups of the hybrid: fixed numbers of drafted ids, and the controller's choice."""
    base = Drafting(
        options=DraftingOptions(method="hybrid"),
        dictionary=open_dictionary(outputs.model.tokenizer, files=[]),
        costs=FREE_ROWS,
    )
    fixed = {
        count: measured(outputs, drafting_as(base.with_options(draft_rows=count)))
        for count in map(int, rows.split(","))
    }
    click.echo(f"| | {' | '.join(map(str, fixed))} | auto | drafted | / best fixed |")
    click.echo("|---" * (4 + len(fixed)) + "|")
    for name in curves:
        known = read_curve(name).row_times
        costs = RoundCosts(rows=tuple(time / known[0] for time in known))
        speedups = [found.speedup(costs) for found in fixed.values()]
        auto, time = controlled(outputs, base, costs)
        speedup = auto.statistics.generation_tokens * costs.verify(1) / time
        cells = " | ".join(f"{each:.3f}" for each in (*speedups, speedup))
        ratio = speedup / max(1.0, *speedups)
        click.echo(f"| {name} | {cells} | {auto.drafted:.1f} | {ratio:.3f} |")
        outputs.save()


def controlled(outputs: OwnOutputs, drafting: Drafting, costs: RoundCosts) -> tuple[Found, float]:
    """What the hybrid takes, and its time, if a controller that knows the costs decides."""
    clock = SimulatedClock()
    knowledge = Knowledge(costs=LearnedCosts(PassTimes(costs.rows, weight=4)))
    drafting = replace(drafting, knowledge=knowledge)

    timed = partial(TimedVerifier, costs=costs, clock=clock)
    condition = replace(drafting_as(drafting), timed=timed, clock=clock)
    return measured(outputs, condition), clock.now


@benchmark.command("ablations")
@own_outputs
@click.option("--size", default=58, show_default=True, help="UniSpec's draft size in ablations.")
@click.option("--curve", "curves", multiple=True, default=WIDE)
def ablations_command(outputs: OwnOutputs, *, size: int, curves: tuple[str, ...]) -> None:
    """Print tokens per pass and speed-ups of published trees under cost curves.

    First those of draft sizes that are calibrated for each curve, beside the best of these and of
    small sizes in hindsight; then those of fixed sizes.
    """
    costs = {name: RoundCosts(rows=read_curve(name).row_times) for name in curves}
    click.echo(f"| | {' | '.join(costs)} |")
    click.echo("|---" * (1 + len(costs)) + "|")
    for name, sized in CALIBRATED.items():
        if outputs.wants(f"{name}, calibrated"):
            tokens = calibration(outputs, sized)
            sizes = {curve: calibrated(tokens, of_curve) for curve, of_curve in costs.items()}
            by_size = {g: measured(outputs, sized(g)) for g in {*sizes.values(), *SMALL}}
            best = {curve: best_size(by_size, of_curve) for curve, of_curve in costs.items()}
            for how, chosen in {"calibrated": sizes, "in hindsight": best}.items():
                cells = (f"{g}: {cell(by_size[g], costs[curve])}" for curve, g in chosen.items())
                click.echo(f"| {name}, {how} | {' | '.join(cells)} |")
            outputs.save()
    for name, condition in fixed_trees(size).items():
        if outputs.wants(name):
            found = measured(outputs, condition)
            cells = (cell(found, of_curve) for of_curve in costs.values())
            click.echo(f"| {name}, {found.drafted:.1f} ids | {' | '.join(cells)} |")
            outputs.save()


def best_size(by_size: Mapping[int, Found], costs: RoundCosts) -> int:
    """The draft size with the highest speed-up on the very texts that were decoded."""
    return max(by_size, key=lambda size: by_size[size].speedup(costs))


def cell(found: Found, costs: RoundCosts) -> str:
    """Tokens per pass, and the speed-up if passes have these costs."""
    return f"{found.tokens_per_pass():.3f}, {found.speedup(costs):.3f}"


def calibration(outputs: OwnOutputs, sized: Sized) -> list[float]:
    """Tokens per pass at each of `CALIBRATION_SIZES`, on the calibration prompts."""
    last = outputs.every[-CALIBRATION_PROMPTS:]
    outputs = replace(outputs, texts=last, tokens=CALIBRATION_TOKENS)
    return [measured(outputs, sized(size)).tokens_per_pass() for size in CALIBRATION_SIZES]


def calibrated(tokens: list[float], costs: RoundCosts) -> int:
    """UniSpec's g* for passes of these costs. tokens: as `calibration` returns."""
    times = [costs.verify(1 + size) for size in CALIBRATION_SIZES]
    return calibrated_size(CALIBRATION_SIZES, tokens, times)


if __name__ == "__main__":
    benchmark()
