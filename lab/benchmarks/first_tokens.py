"""Whether `auto` is slower than plain decoding in a fresh process that has no measured curve.

    python -m lab.benchmarks.first_tokens [--target MODEL] [--temp 0.8] [--seeds 5] [--tokens 300]

Every seed has a process of its own, in which plain decoding and `auto` take turns. The ratio is the
median time of the plain runs to that of `auto`'s first run between them, over the whole answer and
over its first 50 tokens. The first token, which reads the prompt, is left out. The passes of a
small model take as long as the host's work, so this is where drafting can lose most.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import click

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (
    "Wisła jest",
    "Najważniejszym zadaniem",
    "W 1920 roku",
    "Kraków to miasto",
    "Dziękuję bardzo",
)
EARLY = 50


def measure(target: Path, temp: float, seed: int, tokens: int) -> tuple[float, float, float]:
    """The two ratios, and tokens per pass of `auto`."""
    from tokalign.runtime.decoder import Decoder, LanguageModel
    from tokalign.runtime.draft.opening_knowledge import opening_knowledge
    from tokalign.runtime.drafting import Drafting
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.mlx.sampling import Sampling
    from tokalign.runtime.options import DraftingOptions
    from tokalign.runtime.request import Request
    from tokalign.tables.opening import open_dictionary
    from tokalign.tokenizer.vocabulary import TargetId

    model: LanguageModel[TargetId] = LanguageModel.from_folder(target)
    model = replace(model, stop_ids=frozenset())
    plain = Decoder(target=model, drafting=Drafting())
    drafting = Drafting(
        options=DraftingOptions(method="hybrid"),
        dictionary=open_dictionary(model.tokenizer, model_folder=target),
        knowledge=opening_knowledge(model.model),
    )
    request = Request(
        plain.prompt(PROMPTS[seed % len(PROMPTS)], use_template=False),
        max_tokens=tokens,
        sampler=Sampling(temperature=temp, seed=seed),
    )

    def times(decoder: Decoder) -> tuple[list[float], float]:
        generation = Generation(decoder, request)
        ends = [perf_counter() for _ in generation]
        return [end - ends[0] for end in ends], generation.statistics.tokens_per_round

    first, _ = times(plain)
    drafted, per_pass = times(replace(plain, drafting=drafting))
    second, _ = times(plain)
    whole, early = (
        median([first[place], second[place]]) / drafted[place] for place in (-1, EARLY - 1)
    )
    return whole, early, per_pass


@click.command()
@click.option("--target", type=click.Path(path_type=Path), default=ROOT / "demo" / "target")
@click.option("--temp", type=float, default=0.8, show_default=True)
@click.option("--seeds", type=int, default=5, show_default=True)
@click.option("--tokens", type=int, default=300, show_default=True)
@click.option("--seed", type=int, help="Only this one, in this process.")
def benchmark(target: Path, temp: float, seeds: int, tokens: int, seed: int | None) -> None:
    """A line for each seed, and the medians."""
    if seed is not None:
        print(*measure(target, temp, seed, tokens))
        return
    found = []
    for number in range(seeds):
        own = ["--target", str(target), "--temp", str(temp), "--tokens", str(tokens)]
        command = [sys.executable, "-m", __spec__.name, *own, "--seed", str(number)]
        with TemporaryDirectory() as cache:
            run = subprocess.run(
                command,
                env={**os.environ, "TOKALIGN_CACHE": cache},
                check=True,
                capture_output=True,
                text=True,
            )
        found.append([float(word) for word in run.stdout.split()])
        whole, early, per_pass = found[-1]
        click.echo(
            f"seed {number}: {whole:.3f} of plain, first 50 {early:.3f}, {per_pass:.2f} a pass"
        )
    whole, early, _ = (median(column) for column in zip(*found, strict=True))
    click.echo(f"median: {whole:.3f} of plain, first 50 {early:.3f}")


if __name__ == "__main__":
    benchmark()
