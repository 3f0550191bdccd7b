"""Contexts that last: what every turn of a conversation computes, and when its first token comes.

    python -m lab.benchmarks.conversation [--target FOLDER --draft FOLDER] [--method NAME]

The same conversation is held twice: with the contexts kept from turn to turn, and with every turn
read from its start. Ids are counted as they go through the models: prompts, proposals and output.
The outputs of both must be equal, id for id, or the program ends with an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

import click

from tokalign.assemble import load_decoder
from tokalign.cli.output import table
from tokalign.drafting_options import DraftingOptions
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession

DEMO = Path(__file__).resolve().parents[2] / "demo"

SAID = (
    "Opowiedz mi o rzece, która płynie przez nasze miasto, i o mostach nad nią.",
    "A kto je zbudował?",
    "Ile lat ma najstarszy z nich?",
    "Czy można po nim przejść pieszo, czy jeżdżą po nim tylko pociągi i tramwaje?",
    "Co widać z drugiego brzegu?",
    "Napisz o tym krótki list do babci.",
    "Dodaj pozdrowienia.",
    "Dziękuję. Podsumuj naszą rozmowę w jednym zdaniu.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: ids of the prompt, ids that each model computed, seconds to the first token."""

    prompt: int
    output: tuple[int, ...]
    target: int
    draft: int
    before_output: int
    seconds: float


def take_turn(
    generation: Generation, target: TargetModelSession, draft: DraftModelSession | None
) -> Turn:
    """Run a generation with these sessions to its end."""
    before = target.computed, 0 if draft is None else draft.computed
    began, first, until_first = perf_counter(), 0.0, 0
    for _ in generation:
        if not first:
            first, until_first = perf_counter() - began, target.computed - before[0]
    return Turn(
        prompt=len(generation.context.prompt),
        output=tuple(generation.context.emitted),
        target=target.computed - before[0],
        draft=0 if draft is None else draft.computed - before[1],
        before_output=until_first,
        seconds=first,
    )


def hold(decoder: Decoder, *, turns: int, tokens: int, kept: bool) -> list[Turn]:
    """A conversation of so many turns; every turn is read from its start unless contexts are kept.

    Sampled with one seed, so that both ways say the same.
    """
    decoder = replace(decoder, drafting=decoder.drafting.with_stores())
    target, draft = decoder.open_target(rewinds=True), decoder.open_draft()
    messages, taken = list[dict[str, object]](), list[Turn]()
    for text in islice(cycle(SAID), turns):
        messages.append({"role": "user", "content": text})
        if not kept:
            target, draft = decoder.open_target(), decoder.open_draft()
        generation = Generation(
            decoder,
            decoder.prompt(messages),
            max_tokens=tokens,
            target_session=target,
            draft_session=draft,
        )
        taken.append(take_turn(generation, target, draft))
        generation.rest()
        messages.append({"role": "assistant", "content": generation.summary()["text"]})
    return taken


@click.command()
@click.option("--target", default=str(DEMO / "target"))
@click.option("--draft", default=str(DEMO / "draft"))
@click.option("--turns", default=8)
@click.option("--tokens", default=60)
@click.option("--temp", default=0.7)
@click.option("--method", default="auto", help="As of `tokalign decode`.")
@click.option("--num-draft-tokens", type=int, help="Draft so many in every round. Default: auto.")
def command(
    target: str,
    draft: str,
    turns: int,
    tokens: int,
    temp: float,
    method: str,
    num_draft_tokens: int | None,
) -> None:
    """Print both conversations, turn by turn."""
    decoder = load_decoder(
        target,
        draft,
        DraftingOptions(method=method, num_draft_tokens=num_draft_tokens),
        dtype="float32",
        sampler=Sampling(temperature=temp, seed=1),
    )
    hold(decoder, turns=2, tokens=tokens, kept=False)  # kernels are compiled, costs are learned
    with_kept = hold(decoder, turns=turns, tokens=tokens, kept=True)
    afresh = hold(decoder, turns=turns, tokens=tokens, kept=False)
    if [turn.output for turn in with_kept] != [turn.output for turn in afresh]:
        raise click.ClickException("the outputs differ")
    rows = [
        (
            f"turn {number}",
            f"prompt {kept.prompt:5}  output {len(kept.output):3}  before the first token "
            f"{kept.before_output:4} ids, {1e3 * kept.seconds:6.1f} ms (afresh "
            f"{fresh.before_output:5} ids, {1e3 * fresh.seconds:6.1f} ms)  "
            f"in all {kept.target:4} by the target, {kept.draft:4} by the draft "
            f"(afresh {fresh.target:5}, {fresh.draft:5})",
        )
        for number, (kept, fresh) in enumerate(zip(with_kept, afresh, strict=True), 1)
    ]
    click.echo(table(rows))


if __name__ == "__main__":
    command()
