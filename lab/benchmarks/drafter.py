"""A recurrent drafter on the target's own outputs: accepted tokens, rows, and projected speed.

    python -m lab.benchmarks.drafter accepted --target MODEL --drafter FOLDER --prompts FILE \
        [--draft M]
    python -m lab.benchmarks.drafter trees --target MODEL --drafter FOLDER --prompts FILE \
        [--rows 7,15]
    python -m lab.benchmarks.drafter grid --target MODEL --drafter FOLDER --prompts FILE

The target decodes the prompts plainly first, at the temperature given and with a seed for each
prompt. Drafting never changes that text, so it plays the target afterwards; the hidden states of
all its positions come from one pass. Loop, drafters and beam search are those of tokalign.
`accepted --only TEXT` measures the rows with this in their names.
`trees` also needs what the target finds likely after rejected rows (`remembered_target.py`).
Costs are in plain passes of the target, by the bytes of weights that a step or a pass reads. The
curves of M1 Max and M2 Ultra, on which the paper has its grid, are upper bounds: what `grid` prints
under them are lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.benchmarks.draft_models import DraftModels
from lab.benchmarks.paired_lines import bounds
from lab.benchmarks.remembered_target import (
    MOST_DEPTH,
    RememberingVerifier,
    Text,
    load_texts,
    sampled_text,
    save_texts,
)
from tokalign.assemble import keep_loaded, load_models
from tokalign.cli.bench_options import read_texts
from tokalign.cost.curve import read_curve
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.draft.recurrent import BeamDrafter, BeamShape
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.mlx.drafter_folder import load_drafter
from tokalign.runtime.mlx.drafter_session import DrafterSession
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import StatesOfText, TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size, weight_bytes
from tokalign.runtime.rounds import Context, Drafter, Round, Verifier
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId

CURVES = ("m1-max", "m2-ultra", "m4-pro")


@dataclass(frozen=True)
class World:
    """The models, the texts and their hidden states."""

    target: LanguageModel[TargetId]
    drafter: RecurrentDrafter
    texts: list[Text]
    states: list[StatesOfText]

    @classmethod
    def of(cls, target: LanguageModel[TargetId], drafter: Path, texts: list[Text]) -> World:
        """Load the drafter, and compute the hidden states."""
        states = [StatesOfText(target.model, text.ids, prompt=text.given) for text in texts]
        return cls(target, load_drafter(drafter, target), texts, states)

    @property
    def step(self) -> float:
        """What a step of the drafter reads, in passes of the target; a tied head is read, too."""
        return self.drafter.step_bytes / weight_bytes(self.target.model)

    def beams(self, text: Text, **how: Any) -> BeamDrafter:
        """The drafter for one text."""
        session = DrafterSession(self.drafter, self.states[self.texts.index(text)])
        sampler = text.sampler.draft_sampler(vocabulary_size(self.target.model))
        return BeamDrafter(session, sampler=sampler, **how)


def rounds_of(text: Text, drafter: Drafter, verifier: Verifier | None = None) -> Iterator[Round]:
    """The rounds of one text, without the first, which only reads the prompt."""
    limits = Limits(max_tokens=len(text.output))
    context = Context(text.ids[: text.given])
    events = decode(context, drafter, verifier or ReplayVerifier(text.ids), limits=limits)
    found = [event for event in events if isinstance(event, Round)]
    yield from found[1:]


@dataclass
class Sums:
    """Totals of one condition, by text."""

    tokens: list[int]
    rounds: list[int]
    rows: list[int]
    passes: list[int]

    @classmethod
    def of(
        cls,
        texts: Sequence[Text],
        make: Callable[[Text], Drafter],
        verifier: Callable[[Text], Verifier | None] = lambda _: None,
    ) -> Sums:
        """Decode every text, with a drafter and a verifier of its own."""
        sums = cls([], [], [], [])
        for text in texts:
            found = list(rounds_of(text, make(text), verifier(text)))
            sums.tokens.append(sum(len(one.emitted) for one in found))
            sums.rounds.append(len(found))
            sums.rows.append(sum(len(one.tree) for one in found))
            sums.passes.append(sum(one.draft_passes for one in found))
        return sums

    def per_round(self, of: Sequence[int]) -> float:
        """A mean over all rounds."""
        return sum(of) / sum(self.rounds)

    @property
    def accepted(self) -> float:
        """Accepted tokens in a round."""
        return self.per_round(self.tokens) - 1.0

    def interval(self) -> tuple[float, float]:
        """95 % of `accepted`, by a bootstrap over the texts."""
        low, high = bounds(self.tokens, self.rounds)
        return low - 1.0, high - 1.0


def conditions(
    world: World, draft: str | None
) -> dict[str, tuple[Callable[[Text], Drafter], float]]:
    """Every condition of `accepted`: its drafter for a text, and the price of one of its passes."""
    found: dict[str, tuple[Callable[[Text], Drafter], float]] = {}
    shapes = (BeamShape(1, 4), BeamShape(2, 4), BeamShape(4, 4))
    for shape in shapes:
        name = f"drafter, beam {shape.width} x {shape.length}"
        found[name] = partial(world.beams, beam=shape), world.step
    for rows in (4, 7, 15):
        found[f"drafter, best {rows} rows"] = partial(world.beams, rows=rows), world.step
    found["drafter, by gain"] = world.beams, world.step
    if draft is not None:
        for kind, alternatives in (("a chain", 0), ("a tree", DEFAULT_ALTERNATIVES)):
            models = DraftModels.load(world.target, draft, 4, alternatives)
            found[f"draft model, exact, K = 4, {kind}"] = models.drafter, models.pass_bytes
    return found


def accepted(world: World, draft: str | None, only: Sequence[str]) -> None:
    """The drafter alone, beside a draft model.

    only: print the conditions that have one of these in their names; all of them if it is empty.
    """
    measured = conditions(world, draft)
    chosen = {
        name: measured[name] for name in measured if not only or any(one in name for one in only)
    }
    if not chosen:
        raise click.UsageError(f"--only chooses none of: {'; '.join(measured)}")
    print("| condition | accepted a round | 95 % | rows | passes | cost | accepted / cost |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, price) in chosen.items():
        sums = Sums.of(world.texts, make)
        cost = sums.per_round(sums.passes) * price
        low, high = sums.interval()
        print(
            f"| {name} | {sums.accepted:.3f} | {low:.2f} to {high:.2f} | "
            f"{sums.per_round(sums.rows):.1f} | {sums.per_round(sums.passes):.1f} | "
            f"{cost:.3f} | {sums.accepted / cost:.2f} |",
            flush=True,
        )


def trees(world: World, rows: Sequence[int], dictionary: Path | None) -> None:
    """The one tree of all sources, with the drafter and without it."""
    session = TargetModelSession(world.target.model)
    table = open_dictionary(world.target.tokenizer, files=[dictionary] if dictionary else [])
    print("| rows | sources | tokens / pass | passes | saved by the drafter |")
    print("|---|---|---|---|---|")
    for count in rows:
        before = 0
        for with_drafter in (False, True):
            store, mixing = LogitStore(), Mixing()
            base = Drafting(
                method="hybrid",
                dictionary=table,
                logits=store,
                mixing=mixing,
                draft_rows=count,
                costs=FREE_ROWS,
            )

            def drafter(text: Text, base: Drafting = base, joins: bool = with_drafter) -> Drafter:
                assert isinstance(text.sampler, Sampling)
                noise = text.sampler.noise_ahead(vocabulary_size(world.target.model))
                known = replace(base, noise=noise)
                return make_drafter(known, world.beams(text) if joins else None)

            def verifier(text: Text, store: LogitStore = store) -> Verifier:
                return RememberingVerifier(session, text, store)

            sums = Sums.of(world.texts, drafter, verifier)
            passes = sum(sums.rounds)
            saved = f"{1 - passes / before:.1%}" if before else ""
            before = passes
            names = "all and the drafter" if with_drafter else "all free ones"
            print(
                f"| {count} | {names} | {sums.per_round(sums.tokens):.3f} | {passes} | {saved} |",
                flush=True,
            )


def grid(world: World, widths: Sequence[int], lengths: Sequence[int], step: float) -> None:
    """The paper's grid: tokens per pass, and the speed-up under cost curves of real chips."""
    curves = {name: read_curve(name).rows_at(128) for name in CURVES}
    print("| beam | tokens / pass | rows | " + " | ".join(curves) + " |")
    print("|---" * (3 + len(curves)) + "|")
    for width in widths:
        for length in lengths:
            shape = BeamShape(width, length)
            sums = Sums.of(world.texts, partial(world.beams, beam=shape))
            tokens, rows = sums.per_round(sums.tokens), sums.per_round(sums.rows)
            cells = []
            for times in curves.values():
                costs = Costs(rows=tuple(time / times[0] for time in times))
                verified = np.interp(1 + rows, range(1, 1 + len(costs.rows)), costs.rows)
                cells.append(f"{tokens / (verified + length * step):.2f}")
            print(
                f"| {width} x {length} | {tokens:.3f} | {rows:.1f} | {' | '.join(cells)} |",
                flush=True,
            )


@click.command()
@click.argument("what", type=click.Choice(["accepted", "trees", "grid"]))
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--drafter", type=click.Path(path_type=Path, exists=True), required=True)
@click.option(
    "--prompts", type=click.Path(path_type=Path, exists=True), required=True, multiple=True
)
@click.option("--draft")
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="`accepted`: only the rows with this in their names; repeatable.",
)
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True))
@click.option("--rows", default="7,15", show_default=True)
@click.option("--widths", default="2,4,8,16", show_default=True)
@click.option("--lengths", default="4", show_default=True)
@click.option("--limit", default=30, show_default=True)
@click.option("--tokens", default=150, show_default=True)
@click.option("--temp", default=0.7, show_default=True)
@click.option("--step", type=float, help="Price of a step in plain passes; default: by bytes.")
@click.option("--cache", type=click.Path(path_type=Path), help="The texts, for repeated runs.")
def main(
    *,
    what: str,
    target: Path,
    drafter: Path,
    prompts: tuple[Path, ...],
    draft: str | None,
    only: tuple[str, ...],
    dictionary: Path | None,
    rows: str,
    widths: str,
    lengths: str,
    limit: int,
    tokens: int,
    temp: float,
    step: float | None,
    cache: Path | None,
) -> None:
    """Print one table."""
    [model] = load_models([str(target)], dtype="float32")
    texts = load_texts(cache)
    if texts is None:
        bos = model.tokenizer.vocabulary.roles.bos
        assert bos is not None
        lines = [one for file in prompts for one in read_texts(file)]
        given = [model.tokenizer.encode(one) for one in lines[:limit]]
        texts = [
            sampled_text(model, [bos, *ids], tokens, Sampling(temperature=temp, seed=number))
            for number, ids in enumerate(given)
        ]
        save_texts(texts, cache)
    for text in texts:  # those of an earlier run may be longer
        text.ids = text.ids[: text.given + tokens + MOST_DEPTH]
    texts = texts[:limit]
    keep_loaded()
    world = World.of(model, drafter, texts)
    if what == "accepted":
        accepted(world, draft, only)
    elif what == "trees":
        trees(world, [int(one) for one in rows.split(",")], dictionary)
    else:
        price = world.step if step is None else step
        sizes = [[int(one) for one in text.split(",")] for text in (widths, lengths)]
        grid(world, sizes[0], sizes[1], price)


if __name__ == "__main__":
    main()
