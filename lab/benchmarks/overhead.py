"""What the decode loop itself costs: plain decoding against mlx-lm's generate_step, and `auto`.

    python -m lab.benchmarks.overhead [--target MODEL] [--draft MODEL] [--prompts FILE ...]

All ways to decode run in one process, one after another for each prompt. Their order turns with
every repetition, so that heat and other programs affect all alike. Speeds leave out the first
token. Ratios are medians over prompts and repetitions: `plain / mlx-lm` is the overhead of the
loop, `auto / plain` is what drafting costs or brings. Host time is that of a round without the
passes of either model. On a shared machine, `--cpu` counts processor time instead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import click
import mlx.core as mx
from mlx_lm.generate import generate_step
from rich.console import Console
from rich.progress import track

from tokalign.build.alignment import align
from tokalign.cli.texts import read_texts
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.draft.opening_knowledge import opening_knowledge
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tables.opening import open_alignment, open_dictionary
from tokalign.tokenizer.vocabulary import DraftId, TargetId

ROOT = Path(__file__).resolve().parents[2]
Clock = Callable[[], float]
_PATH = click.Path(path_type=Path, exists=True)


@dataclass
class Speeds:
    """Tokens per second and host milliseconds of the runs so far, by way of decoding."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    host: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, one: str, other: str) -> float:
        """The median speed of one way to decode over that of another."""
        pairs = zip(self.rates[one], self.rates[other], strict=True)
        return median(a / b for a, b in pairs)


def _rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


def _mlx_lm(target: LanguageModel[TargetId], prompt: Prompt, tokens: int, clock: Clock) -> float:
    ids = mx.array(list(prompt.target), dtype=mx.uint32)
    return _rate([clock() for _ in generate_step(ids, target.model, max_tokens=tokens)])


def _tokalign(
    decoder: Decoder, prompt: Prompt, tokens: int, clock: Clock, speeds: Speeds, name: str
) -> float:
    generation = Generation(decoder, Request(prompt, max_tokens=tokens))
    times = [clock() for _ in generation]
    speeds.host.setdefault(name, []).append(generation.statistics.host_ms_per_round["p50"])
    return _rate(times)


def _decoders(target: Path, draft: Path | None) -> Iterator[tuple[str, Decoder]]:
    """Plain decoding and `auto` with every method; none of them stops before the last token."""
    ours: LanguageModel[TargetId] = LanguageModel.from_folder(target)
    ours = replace(ours, stop_ids=frozenset())
    plain = Decoder(target=ours, drafting=Drafting())
    yield "plain", plain
    dictionary = open_dictionary(ours.tokenizer, model_folder=target)
    free = Drafting(
        options=DraftingOptions(method="hybrid"),
        dictionary=dictionary,
        knowledge=opening_knowledge(ours.model),
    )
    yield "auto, free sources", replace(plain, drafting=free)
    if draft is not None:
        theirs: LanguageModel[DraftId] = LanguageModel.from_folder(draft)
        tables = cache(lambda: open_alignment(ours.tokenizer, theirs.tokenizer, otherwise=align))
        for method in ("draft", "hybrid"):
            drafting = Drafting(
                options=DraftingOptions(method=method, translation="exact"),
                dictionary=dictionary,
                alignment=tables,
                knowledge=opening_knowledge(ours.model, theirs.model),
            )
            yield f"auto, {method}", replace(plain, draft=theirs, drafting=drafting)


@click.command()
@click.option("--target", type=_PATH, default=ROOT / "demo" / "target")
@click.option("--draft", type=_PATH, default=ROOT / "demo" / "draft")
@click.option("--prompts", type=_PATH, multiple=True, help="Default: the bundled sample.")
@click.option("--field", default="text", show_default=True, help="Where .jsonl has its text.")
@click.option("--limit", type=int, default=5, show_default=True, help="Prompts of each file.")
@click.option("--tokens", type=int, default=200, show_default=True, help="Of each output.")
@click.option("--repetitions", type=int, default=5, show_default=True)
@click.option("--cpu", is_flag=True, help="Processor time of all threads instead of time.")
@click.option("--plain-only", is_flag=True, help="Only the loop's overhead.")
def benchmark(
    target: Path,
    draft: Path,
    prompts: tuple[Path, ...],
    field: str,
    limit: int,
    tokens: int,
    repetitions: int,
    cpu: bool,
    plain_only: bool,
) -> None:
    """One row per prompt file and way to decode."""
    decoders = dict(_decoders(target, None if plain_only else draft))
    if plain_only:
        decoders = {"plain": decoders["plain"]}
    click.echo("| prompts | | tokens/s | / mlx-lm | / plain | host ms per round, p50 |")
    click.echo("|---|---|---|---|---|---|")
    for file in prompts or (ROOT / "corpora" / "pl-mini.txt",):
        texts = [text[:200] for text in read_texts(file, field=field, limit=limit)]
        speeds = _measure(
            decoders, texts, tokens, repetitions, process_time if cpu else perf_counter
        )
        for name, rates in speeds.rates.items():
            host = f"{median(speeds.host[name]):.3f}" if name in speeds.host else ""
            ratios = (f"{speeds.ratio(name, other):.3f}" for other in ("mlx-lm", "plain"))
            cells = (file.stem, name, f"{median(rates):.1f}", *ratios, host)
            click.echo(f"| {' | '.join(cells)} |")


def _measure(
    decoders: dict[str, Decoder],
    texts: list[str],
    tokens: int,
    repetitions: int,
    clock: Clock,
) -> Speeds:
    speeds, plain = Speeds(), decoders["plain"]
    prompts = [plain.prompt(text, use_template=False) for text in texts]
    for repetition in track(range(repetitions + 1), console=Console(stderr=True)):
        for prompt in prompts:
            ways: list[tuple[str, Callable[[], float]]] = [
                ("mlx-lm", partial(_mlx_lm, plain.target, prompt, tokens, clock))
            ]
            for name, decoder in decoders.items():
                own = Prompt(target=prompt.target)
                ways.append((name, partial(_tokalign, decoder, own, tokens, clock, speeds, name)))
            turned = ways[repetition % len(ways) :] + ways[: repetition % len(ways)]
            for name, run in turned:
                rate = run()
                if repetition:  # the first is a warm-up
                    speeds.rates.setdefault(name, []).append(rate)
    return speeds


if __name__ == "__main__":
    benchmark()
