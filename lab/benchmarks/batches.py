"""Requests that are decoded together: with drafts in shared passes, plainly, and by mlx-lm.

    python -m lab.benchmarks.batches TARGET [--requests 2,4,8] [--tokens 48] [--kind editing]
        [--dictionary FILE] [--curve NAME] [--ways plain,drafts,mlx-lm]

So many prompts of `lab/prompts/real/` are read, then decoded together until so many tokens for each
are out; nobody ends meanwhile. The ways take turns, in float32. Answers are compared id by id with
those of plain decoding.

Columns: tokens per pass and rows per pass; tokens per second by the clock; the speed relative to
plain batching by the clock, and by the counts under the costs of passes over so many rows that were
measured just before. `--curve`: besides, with a controller that is told a published curve, by the
counts under that curve: what it would choose on that machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from lab.benchmarks.real_prompts import PROMPTS
from tokalign.api.assemble import assemble, keep_loaded, load_models
from tokalign.cli.texts import read_texts
from tokalign.evaluate.calibrate import measure_briefly
from tokalign.runtime.cost import CostCurve, read_curve
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.costs import Costs, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Round


@dataclass
class Run:
    """One way with one number of requests. passes: their rows and the tokens that they gave."""

    seconds: float = 0.0
    passes: list[tuple[int, int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.passes)


def prompts_of(decoder: Decoder, kinds: Sequence[str], count: int) -> list[Any]:
    """The first prompts of these kinds in turns."""
    texts = [read_texts(PROMPTS / "real" / f"{kind}.txt") for kind in kinds]
    mixed = [text for group in zip(*texts, strict=False) for text in group]
    return [decoder.prompt(mixed[n % len(mixed)].replace("\\n", "\n")) for n in range(count)]


def read(decoder: Decoder, prompts: Sequence[Any]) -> list[TargetModelSession]:
    """Sessions that have read the prompts but for their last ids."""
    sessions = []
    for prompt in prompts:
        sessions.append(decoder.open_target())
        sessions[-1].settle(prompt.target[:-1])
    return sessions


def together(
    decoder: Decoder, prompts: Sequence[Any], tokens: int, have_read: Sequence[TargetModelSession]
) -> Run:
    """Decode in shared passes."""
    batch = decoder.open_batch()
    assert batch.shares_passes
    decodings = []
    for prompt, session in zip(prompts, have_read, strict=True):
        target, count = decoder.open_target(), len(prompt.target) - 1
        target.adopt(session.copy_of(count), prompt.target[:-1])
        decodings.append(decoder.begin(Request(prompt), target=target))
    run, began, room = Run(), perf_counter(), tokens * len(prompts)
    while run.tokens < room:
        rounds = [one for one in batch.round(decodings) if isinstance(one, Round)]
        assert len(rounds) == len(prompts)
        run.passes.append((sum(one.rows for one in rounds), sum(len(o.emitted) for o in rounds)))
    run.seconds = perf_counter() - began
    run.answers = [list(decoding.context.emitted) for decoding in decodings]
    return run


def by_mlx_lm(decoder: Decoder, prompts: Sequence[Any], tokens: int) -> Run:
    """Decode in one of mlx-lm's batches."""
    generator = BatchGenerator(decoder.target.model, max_tokens=10 * tokens)
    uids = generator.insert([list(prompt.target) for prompt in prompts])
    answers: dict[int, list[int]] = {uid: [] for uid in uids}
    run, began = Run(), 0.0
    while run.tokens < tokens * len(prompts):
        _, emitted = generator.next()
        for response in emitted:
            answers[response.uid].append(int(response.token))
        if all(answers.values()):
            began = began or perf_counter()
            run.passes.append((len(prompts), len(emitted)))
    run.seconds = perf_counter() - began
    run.answers = list(answers.values())
    generator.close()
    return run


def told(decoder: Decoder, costs: Sequence[float]) -> Decoder:
    """The decoder with a controller that knows what passes cost, and nothing else."""
    rows = PassTimes(costs, weight=1_000_000)
    knowledge = Knowledge(costs=LearnedCosts(rows))
    knowledge.rounds = 1  # nothing has to be timed first
    return replace(decoder, drafting=replace(decoder.drafting, knowledge=knowledge))


def costs_of(curve: CostCurve) -> Costs:
    """What passes cost."""
    return Costs(rows=curve.row_times)


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.option("--requests", default="2,4,8", show_default=True)
@click.option("--tokens", default=48, show_default=True)
@click.option("--kind", "kinds", multiple=True, default=("editing", "polish"), show_default=True)
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True))
@click.option("--curve", "curves", multiple=True, help="Also under this one's costs.")
@click.option("--ways", default="plain,drafts", show_default=True)
@click.option("--repeat", default=2, show_default=True)
def main(
    target: Path,
    requests: str,
    tokens: int,
    kinds: Sequence[str],
    dictionary: Path | None,
    curves: Sequence[str],
    ways: str,
    repeat: int,
) -> None:
    """Measure, and print a table."""
    (model,) = load_models([str(target)], dtype="float32")[:1]
    model = replace(model, stop_ids=frozenset())
    keep_loaded()
    hybrid = DraftingOptions(method="hybrid", dictionary=dictionary)
    plain = assemble(model, None, DraftingOptions(method="plain"))
    drafting = assemble(model, None, hybrid)
    here = costs_of(measure_briefly(model.model))
    known = {name: costs_of(read_curve(name)) for name in curves}
    print(
        "C =", *[f"{rows}: {here.verify(rows) / here.verify(1):.2f}" for rows in (2, 4, 8, 16, 32)]
    )
    numbers = [int(number) for number in requests.split(",")]
    every = prompts_of(plain, kinds, max(numbers))
    sessions = read(plain, every)
    for number in numbers:
        prompts, have_read = every[:number], sessions[:number]
        runs: dict[str, list[Run]] = {}
        for turn in range(repeat):
            names = [*ways.split(","), *curves]
            for name in names if turn % 2 == 0 else reversed(names):
                if name == "mlx-lm":
                    run = by_mlx_lm(plain, prompts, tokens)
                else:
                    decoder = plain if name == "plain" else drafting
                    decoder = told(drafting, known[name].rows) if name in known else decoder
                    run = together(decoder, prompts, tokens, have_read)
                runs.setdefault(name, []).append(run)
                mx.clear_cache()
        for name, of in runs.items():
            print(
                f"{number} requests, {name}:", described(of, runs["plain"], known.get(name, here))
            )


def described(runs: Sequence[Run], plain: Sequence[Run], costs: Costs) -> str:
    """What the runs of one way gave, beside those of plain batching."""
    speed, usual = (median(run.tokens / run.seconds for run in of) for of in (runs, plain))
    passes = [one for run in runs for one in run.passes]
    rows, tokens = (sum(column) for column in zip(*passes, strict=True))
    each = len(plain[0].answers)
    priced = tokens / each * costs.verify(each) / sum(costs.verify(n) for n, _ in passes)
    differing = sum(
        a[: len(b)] != b[: len(a)]
        for run in runs
        for a, b in zip(run.answers, plain[0].answers, strict=True)
    )
    return (
        f"{tokens / len(passes):.2f} tokens and {rows / len(passes):.2f} rows a pass; "
        f"{speed:.2f} tokens/s, {speed / usual:.3f} by the clock, {priced:.3f} by the counts; "
        f"{differing} answers differ"
    )


if __name__ == "__main__":
    main()
