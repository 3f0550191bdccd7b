"""The output of every drafter and translation against plain decoding, id by id, in float32.

    python benchmarks/lossless.py [--target MODEL] [--draft MODEL] [--prompts FILE] [--temp 0.7]

By default it uses the shared tiny models and prompts (../shared/data beside the project). It prints
one row per condition: prompts whose ids differ from plain decoding (none may), tokens per round,
acceptance, draft passes, host time per round in ms, and seconds, which mean little on a CPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import click
from rich.console import Console
from rich.progress import track

from tokalign.assemble import load_decoder
from tokalign.cli.texts import read_texts
from tokalign.drafting_options import DraftingOptions
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.statistics import Statistics

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
HEADER = """\
| condition | differing | tokens/round | accepted/round | acceptance | passes/round | host p50 \
| host p99 | s |
|---|---|---|---|---|---|---|---|---|"""
_PATH = click.Path(path_type=Path, exists=True)
CONDITIONS = (
    ("dictionary", "none"),
    ("copy", "none"),
    ("draft", "context:5"),
    ("draft", "intersection"),
    ("draft", "exact"),
    ("hybrid", "exact"),
)


@dataclass
class Row:
    """One condition over all prompts."""

    name: str
    statistics: Statistics
    seconds: float = 0.0
    differing: int = 0

    def __str__(self) -> str:
        found = self.statistics
        return (
            f"| {self.name} | {self.differing} | {found.tokens_per_round:.3f} "
            f"| {found.accepted_per_round:.3f} | {found.draft_acceptance_rate:.3f} "
            f"| {found.draft_passes_per_round:.2f} | {found.host_ms_per_round['p50']:.2f} "
            f"| {found.host_ms_per_round['p99']:.2f} | {self.seconds:.0f} |"
        )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair; its sessions are used again from prompt to prompt."""

    decoder: Decoder
    target_session: TargetModelSession
    draft_session: DraftModelSession | None
    tokens: int

    @classmethod
    def load(cls, target: Path, draft: Path, *, draft_tokens: int, tokens: int) -> Bench:
        """Load two models, with the tables that are found beside the target or computed."""
        options = DraftingOptions(method="hybrid", num_draft_tokens=draft_tokens)
        decoder = load_decoder(str(target), str(draft), options, dtype="float32")
        return cls(
            decoder=decoder,
            target_session=decoder.open_target(),
            draft_session=decoder.open_draft(),
            tokens=tokens,
        )

    def emit(
        self, prompt: str, sampling: Sampling, row: Row, *, method: str, translation: str = "none"
    ) -> list[int]:
        """The ids of one generation; its figures go to `row`."""
        drafting = replace(self.decoder.drafting, method=method, translation=translation)
        decoder = replace(self.decoder, drafting=drafting, sampler=sampling)
        began = perf_counter()
        generation = Generation(
            decoder,
            decoder.prompt(prompt),
            max_tokens=self.tokens,
            target_session=self.target_session,
            draft_session=self.draft_session,
            statistics=row.statistics,
        )
        for _ in generation:
            pass
        row.seconds += perf_counter() - began
        return list(generation.context.emitted)


@click.command()
@click.option("--target", type=_PATH, default=SHARED / "models" / "target-bielik-tiny")
@click.option("--draft", type=_PATH, default=SHARED / "models" / "draft-llama-tiny")
@click.option("--prompts", type=_PATH, default=SHARED / "corpus" / "dev" / "prompts.txt")
@click.option("--limit", type=int, default=30, show_default=True, help="Prompts.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Of each output.")
@click.option("--num-draft-tokens", type=int, default=2, show_default=True)
@click.option("--temp", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", multiple=True, help="Conditions such as 'draft exact'; all by default.")
def benchmark(
    target: Path,
    draft: Path,
    prompts: Path,
    limit: int,
    tokens: int,
    num_draft_tokens: int,
    temp: float,
    seed: int,
    only: tuple[str, ...],
) -> None:
    """Decode every prompt plainly and under every condition; exit 1 if any id differs."""
    bench = Bench.load(target, draft, draft_tokens=num_draft_tokens, tokens=tokens)
    sampling = Sampling(temperature=temp, seed=seed)
    texts = read_texts(prompts, limit=limit)
    conditions = [
        condition
        for condition in CONDITIONS
        if (bench.decoder.drafting.dictionary or condition[0] != "dictionary")
        and (not only or " ".join(condition) in only)
    ]
    plain = Row("plain", Statistics())
    rows = [Row(" ".join(condition), Statistics()) for condition in conditions]
    for text in track(texts, console=Console(stderr=True)):
        expected = bench.emit(text, sampling, plain, method="plain")
        for row, (method, translation) in zip(rows, conditions, strict=True):
            found = bench.emit(text, sampling, row, method=method, translation=translation)
            row.differing += found != expected
    click.echo(HEADER)
    for row in (plain, *rows):
        click.echo(str(row))
    sys.exit(any(row.differing for row in rows))


if __name__ == "__main__":
    benchmark()
