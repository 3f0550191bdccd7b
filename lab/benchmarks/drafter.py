"""ReDrafter's grid: a recurrent drafter's beams on the target's own outputs, and projected speed.

    python -m lab.benchmarks.drafter --target MODEL --drafter FOLDER --prompts FILE

The target decodes the prompts plainly first, at the temperature given and with a seed for each
prompt. Drafting never changes that text, so it plays the target afterwards; the hidden states of
all its positions come from one pass. Loop, drafters and beam search are those of tokalign.
Costs are in plain passes of the target, by the bytes of weights that a step or a pass reads. The
curves of M1 Max and M2 Ultra, on which the paper has its grid, are upper bounds: what is printed
under them are lower bounds. "Not merged" are the rows of the beams one by one, as the paper's merge
ratio takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
import numpy as np

from lab.baselines.whole_beams import WholeBeams
from lab.benchmarks.remembered_target import MOST_DEPTH, Text, load_texts, sampled_text, save_texts
from tokalign.api.assemble import keep_loaded, load_models
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.cost import read_curve
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.costs import Costs
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.drafter_folder import named_drafter
from tokalign.runtime.mlx.hidden_states import HiddenStates
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter, RecurrentSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.weights import weight_bytes
from tokalign.runtime.rounds import Array, Context, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

CURVES = ("m1-max", "m2-ultra", "m4-pro")


class StatesOfText:
    """Gives a drafter its states, as a session of the target does whose passes have just run.

    model: the target. ids: the text. prompt: how many of the ids were given; after these alone
    there is no state, as before the first pass of a generation.
    Raises: IncompatibleError for a model whose states cannot be had.
    """

    def __init__(self, model: Any, ids: Sequence[TargetId], *, prompt: int) -> None:
        states = HiddenStates(model)
        states.model(mx.array([list(ids)]))
        self._hidden, self._prompt = states.take(), prompt
        mx.eval(self._hidden)

    def state_before_last(self, ids: Sequence[TargetId]) -> Array | None:
        """The state f[1, hidden] before the last of `ids`, with which the text begins."""
        return None if len(ids) <= self._prompt else self._hidden[len(ids) - 2 : len(ids) - 1]


@dataclass(frozen=True)
class World:
    """The models, the texts and their hidden states."""

    target: LanguageModel[TargetId]
    drafter: RecurrentDrafter
    texts: list[Text]
    states: list[StatesOfText]

    @property
    def step(self) -> float:
        """What a step of the drafter reads, in passes of the target; a tied head is read, too."""
        return self.drafter.step_bytes / weight_bytes(self.target.model)

    def rounds(self, shape: BeamShape) -> Iterator[Round]:
        """The rounds of all texts, without the first of each, which only reads the prompt."""
        for text, states in zip(self.texts, self.states, strict=True):
            sampler = text.sampler.draft_sampler
            session = RecurrentSession(self.drafter, states)  # type: ignore[arg-type]
            drafter = WholeBeams(session, shape, sampler)
            context, limits = Context(text.ids[: text.given]), Limits(max_tokens=len(text.output))
            events = Decoding(context, drafter, ReplayVerifier(text.ids), limits=limits)
            yield from [event for event in events if isinstance(event, Round)][1:]


def grid(world: World, widths: Sequence[int], lengths: Sequence[int], step: float) -> None:
    """The paper's grid: tokens per pass, and the speed-up under cost curves of real chips."""
    curves = {name: read_curve(name).row_times for name in CURVES}
    print("| beam | tokens / pass | rows | not merged | " + " | ".join(curves) + " |")
    print("|---" * (4 + len(curves)) + "|")
    for width, length in product(widths, lengths):
        rounds = list(world.rounds(BeamShape(width, length)))
        tokens = sum(len(one.emitted) for one in rounds) / len(rounds)
        rows = sum(len(one.tree) for one in rounds) / len(rounds)
        apart = sum(rows_of_beams(one.tree) for one in rounds) / len(rounds)
        cells = []
        for times in curves.values():
            costs = Costs(rows=tuple(time / times[0] for time in times))
            verified = np.interp(1 + rows, range(1, 1 + len(costs.rows)), costs.rows)
            cells.append(f"{tokens / (verified + length * step):.2f}")
        beam = f"{width} x {length} | {tokens:.3f} | {rows:.1f} | {apart:.1f}"
        print(f"| {beam} | {' | '.join(cells)} |", flush=True)


def rows_of_beams(tree: TokenTree[TargetId]) -> int:
    """Rows that the beams of a tree would take if what they begin with alike were not merged."""
    depths = tree.depths
    return sum(depths[leaf] for leaf in set(range(len(tree))) - set(tree.parents))


@click.command()
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--drafter", type=click.Path(path_type=Path, exists=True), required=True)
@click.option(
    "--prompts", type=click.Path(path_type=Path, exists=True), required=True, multiple=True
)
@click.option("--widths", default="1,2,3,4", show_default=True)
@click.option("--lengths", default="1,2,3,4,5", show_default=True)
@click.option("--limit", default=30, show_default=True)
@click.option("--tokens", default=150, show_default=True)
@click.option("--temp", default=0.7, show_default=True)
@click.option("--step", type=float, help="Price of a step in plain passes; default: by bytes.")
@click.option("--cache", type=click.Path(path_type=Path), help="The texts, for repeated runs.")
def main(
    *,
    target: Path,
    drafter: Path,
    prompts: tuple[Path, ...],
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
    states = [StatesOfText(model.model, text.ids, prompt=text.given) for text in texts]
    world = World(model, named_drafter(drafter, model), texts, states)
    price = world.step if step is None else step
    sizes = [[int(one) for one in text.split(",")] for text in (widths, lengths)]
    grid(world, sizes[0], sizes[1], price)


if __name__ == "__main__":
    main()
