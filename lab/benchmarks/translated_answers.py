"""Chains of each translation on recorded answers, which the draft model reads once.

    python -m lab.benchmarks.recorded_answers MODEL ANSWERS [--temp 0.7]
    python -m lab.benchmarks.translated_answers ANSWERS --model MODEL --draft MODEL [--temp 0.7]
        [--numbers 5-8] [--kind KIND] [-k 2 -k 4] [--trees]

A recorded answer plays the target: tokens per pass with a draft model alone and a fixed number of
its passes, by kind of prompt. Drafters and loop are the real ones; where answers were sampled, the
draft has the noise that they were drawn with. `read_draft.py` says why a chain needs no passes.
With --trees `exact` is measured as a tree, too, whose passes are computed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from lab.benchmarks.free_sources import RecordedVerifier, sampling_of
from lab.benchmarks.paired_lines import bounds, interval, table
from lab.benchmarks.read_draft import ReadAnswer
from lab.benchmarks.real_prompts import KINDS
from lab.benchmarks.recorded_answers import Answer, chosen_answers
from tokalign.api.assemble import load_models
from tokalign.api.choosing import choose_drafting
from tokalign.cli.output import progress
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.chat import Prompt
from tokalign.runtime.drafting import Drafting, make_model_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Context, Round
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PUBLISHED, OWN, TREE = "context:5", "exact", "exact, tree"


class Played:
    """Tokens, passes and rows of an answer under a condition."""

    def __init__(
        self, answer: Answer, drafting: Drafting, pair: Pair, session: DraftModelSession
    ) -> None:
        sampler = sampling_of(answer).draft_sampler
        prompt = Prompt(target=answer.prompt)
        events = Decoding(
            Context(answer.prompt),
            make_model_drafter(drafting, pair, prompt, session, sampler),
            RecordedVerifier(answer, None),
            limits=Limits(max_tokens=len(answer.ids)),
        )
        rounds = [one for one in events if isinstance(one, Round)][1:]
        self.tokens = sum(len(one.emitted) for one in rounds)
        self.passes, self.rows = len(rounds), sum(one.rows for one in rounds)


def conditions(steps: Sequence[int], *, trees: bool) -> dict[tuple[str, int], DraftingOptions]:
    """By translation and draft passes a round."""
    found = {}
    for k in steps:
        for name in (PUBLISHED, "intersection", OWN, TREE)[: 4 if trees else 3]:
            options = DraftingOptions(
                method="draft", translation=OWN if name == TREE else name, num_draft_tokens=k
            )
            found[name, k] = options if name == TREE else replace(options, alternatives=0)
    return found


def show(answers: Sequence[Answer], played: dict[tuple[str, int], list[Played]]) -> None:
    """Print tokens per pass, and `exact` beside the published window, with 95 % intervals."""
    head = ["kind", "K", *dict.fromkeys(name for name, _ in played)]
    lines = []
    for kind in [*KINDS, "all"]:
        chosen = [i for i, answer in enumerate(answers) if kind in (answer.kind, "all")]
        for k in dict.fromkeys(k for _, k in played) if chosen else ():
            own = {name: [of[i] for i in chosen] for (name, n), of in played.items() if n == k}
            gains = [_relative(own, name) for name in (OWN, TREE)]
            lines.append([kind, str(k), *map(_cell, own.values()), *gains])
    click.echo(table([*head, *(f"{name} / {PUBLISHED}" for name in (OWN, TREE))], lines))


def _cell(of: Sequence[Played]) -> str:
    tokens, passes = (np.array([getattr(x, what) for x in of]) for what in ("tokens", "passes"))
    return f"{interval(tokens, passes)}, {sum(x.rows for x in of) / passes.sum():.1f} rows"


def _relative(own: dict[str, list[Played]], way: str) -> str:
    """Passes of the published window over those of `way`: both emit the same tokens."""
    if not {way, PUBLISHED} <= own.keys():
        return ""
    ours, theirs = ([one.passes for one in own[name]] for name in (way, PUBLISHED))
    low, high = bounds(theirs, ours)
    return f"{sum(theirs) / sum(ours):.3f} ({low:.2f}-{high:.2f})"


@click.command()
@click.argument("answers", type=click.Path(path_type=Path, exists=True))
@click.option("--model", required=True, help="Its tokenizer, of the model that answered.")
@click.option("--draft", required=True, help="The draft model.")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--numbers", default="5-8", show_default=True, help="Of the prompts of each kind.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS)
@click.option("-k", "steps", multiple=True, type=int, default=(2, 4), show_default=True)
@click.option("--only", default="", help="Only translations whose names match this.")
@click.option("--trees", is_flag=True, help="Measure trees, too, whose passes are computed.")
def main(
    answers: Path,
    model: str,
    draft: str,
    temp: float,
    numbers: str,
    kinds: Sequence[str],
    steps: Sequence[int],
    only: str,
    trees: bool,
) -> None:
    """Print a table."""
    chosen = chosen_answers(answers, numbers, temp=temp, kinds=kinds)
    target: Tokenizer[TargetId] = resolve_tokenizer(model).tokenizer
    [loaded] = load_models([draft], dtype="float32")
    size = 1 + max(int(answer.likely.max()) for answer in chosen)
    pair = Pair(target, loaded.tokenizer, size)
    session, reader = DraftModelSession(loaded.model), ReadAnswer(loaded.model)
    session.reads_all = True  # as the other one
    drafting = {
        key: choose_drafting(target, loaded.tokenizer, options)
        for key, options in conditions(steps, trees=trees).items()
        if re.search(only, key[0])
    }
    played: dict[tuple[str, int], list[Played]] = {key: [] for key in drafting}
    with progress(len(chosen), "playing") as advance:
        for answer in chosen:
            text = Prompt(target=answer.prompt).draft_text(pair)
            reader.begin(pair, text, [*answer.prompt, *answer.ids], len(answer.prompt))
            for (name, k), how in drafting.items():
                reads = session if name == TREE else reader
                played[name, k].append(Played(answer, how, pair, reads))
            passes = {f"{name} {k}": of[-1].passes for (name, k), of in played.items()}
            click.echo(f"{answer.name}: {len(answer.ids)} ids, passes {passes}", err=True)
            advance(1)
    show(chosen, played)


if __name__ == "__main__":
    main()
