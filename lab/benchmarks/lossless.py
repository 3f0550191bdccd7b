"""Plain decoding against drafting with everything on, id for id, in several threads.

    python -m lab.benchmarks.lossless --target MODEL --prompts FILE [--draft-model MODEL]
        [--tokens 50000] [--each 250] [--threads 2] [--temp 0 --temp 0.7] [--exact]

Each prompt is decoded again and again with other seeds, and greedily once, until there are enough
tokens. All threads share the models, one remembered store, which is written after every request,
and what was learned. Odd requests leave the number of rows to the controller, even ones propose 15
ids in every round. The exit code is 1 if an id differs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tokalign.assemble import assemble, load_models
from tokalign.cli.bench_options import read_texts
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.generate import Generation
from tokalign.runtime.methods import DraftingOptions
from tokalign.runtime.mlx.sampling import Sampling

_ROWS = 15


@dataclass(frozen=True)
class Request:
    """One text to be decoded twice. number: odd ones are drafted as the controller decides."""

    number: int
    prompt: Prompt
    sampler: Sampling


@dataclass(frozen=True)
class Compared:
    """What became of it. sources: accepted tokens by where they came from."""

    tokens: int
    rounds: int
    differing: int
    sources: Counter[str]


def requests(prompts: Sequence[Prompt], temperatures: Sequence[float]) -> Iterator[Request]:
    """Every prompt at every temperature, endlessly; greedily only once, as it gives the same."""
    numbers = count()
    for seed in count():
        for temperature in temperatures:
            for prompt in prompts:
                if temperature > 0 or not seed:
                    sampler = Sampling(temperature=temperature, seed=seed)
                    yield Request(next(numbers), prompt, sampler)
        if seed and not any(temperatures):
            return


def compare(plain: Decoder, drafting: Sequence[Decoder], request: Request, each: int) -> Compared:
    """Decode a request plainly, then with drafts."""

    def decoded(decoder: Decoder) -> Generation:
        decoder = replace(decoder, sampler=request.sampler)
        generation = Generation(decoder, request.prompt, max_tokens=each)
        for _ in generation.by_round():
            pass
        decoder.remember()
        return generation

    expected = decoded(plain).context.emitted
    generation = decoded(drafting[request.number % len(drafting)])
    found = generation.context.emitted
    pairs = zip(expected, found, strict=False)
    differing = sum(one != other for one, other in pairs) + abs(len(expected) - len(found))
    rounds = generation.rounds
    sources = Counter(name for one in rounds for name in one.sources[: one.accepted])
    return Compared(len(found), len(rounds), differing, sources)


@click.command()
@click.option("--target", required=True)
@click.option("--draft-model")
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--tokens", default=50_000, show_default=True)
@click.option("--each", default=250, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--temp", "temperatures", type=float, multiple=True, default=(0.0, 0.7))
@click.option("--exact", is_flag=True, help="As --exact of decode.")
@click.option("--template", is_flag=True, help="Use the target's chat template.")
def main(
    *,
    target: str,
    draft_model: str | None,
    prompts: Path,
    tokens: int,
    each: int,
    threads: int,
    temperatures: tuple[float, ...],
    exact: bool,
    template: bool,
) -> None:
    """Print one line for every temperature, and the sources of what was accepted."""
    models: list[Any] = load_models([target, *([draft_model] if draft_model else [])])
    ours, draft = models[0], models[1] if draft_model else None
    with TemporaryDirectory() as cache:
        os.environ["TOKALIGN_CACHE"] = cache
        options = DraftingOptions(remember=True, exact=exact)
        drafting = [
            assemble(ours, draft, replace(options, draft_rows=rows), note=click.echo)
            for rows in (_ROWS, None)
        ]
        plain = assemble(ours, None, DraftingOptions(method="plain"))
        asked = [drafting[0].prompt(text, use_template=template) for text in read_texts(prompts)]
        totals: dict[float, list[Compared]] = {one: [] for one in temperatures}
        waiting = requests(asked, temperatures)
        with ThreadPoolExecutor(threads) as pool:
            while sum(one.tokens for found in totals.values() for one in found) < tokens:
                batch = [one for _, one in zip(range(4 * threads), waiting, strict=False)]
                if not batch:
                    break
                done = pool.map(lambda one: compare(plain, drafting, one, each), batch)
                for request, compared in zip(batch, done, strict=True):
                    totals[request.sampler.temperature].append(compared)
    click.echo("| T | requests | tokens | tokens per pass | ids that differ | accepted by source |")
    click.echo("|---" * 6 + "|")
    for temperature, found in totals.items():
        sources = sum((one.sources for one in found), Counter[str]())
        emitted, rounds = (
            sum(getattr(one, name) for one in found) for name in ("tokens", "rounds")
        )
        named = ", ".join(f"{name} {number:,}" for name, number in sources.most_common())
        click.echo(
            f"| {temperature} | {len(found)} | {emitted:,} | {emitted / max(1, rounds):.3f} | "
            f"{sum(one.differing for one in found)} | {named} |"
        )
    if any(one.differing for found in totals.values() for one in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
