"""Sampled decoding: what a draft model gets accepted at a temperature, by how it guesses.

    python benchmarks/sampling.py [--data FOLDER] [--draft MODEL] [--temp 0.8] [--seeds 3]

Three conditions for each translation, interleaved prompt by prompt and seed by seed:

* `greedy`: the draft's likeliest ids against the target's draw, as sampler-match is published;
* `match`: the draft draws with the noise that the target will draw with; the text is the same;
* `residual`: the draft draws with its own, and is judged by both laws.

Per condition: rounds, accepted tokens per round, acceptance per proposed token, and the differences
of accepted per round to `greedy` and to `match` with 95 % bootstrap intervals over (prompt, seed)
pairs. Exit 1 if a `match` text differs from that of plain decoding.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from tokalign.build.alignment.alignment_bundle import align
from tokalign.cli.texts import read_texts
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.tables.opening import open_alignment

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
| translation | guesses | rounds | accepted/round | acceptance | against greedy | against match |
|---|---|---|---|---|---|---|"""
_PATH = click.Path(path_type=Path, exists=True)


class LikeliestGuesses(Sampling):
    """Sampler-match whose drafts take what they find likeliest."""

    __slots__ = ()

    @property
    def drafts(self) -> None:
        return None


GUESSES: dict[str, tuple[type[Sampling], Any]] = {
    "greedy": (LikeliestGuesses, "match"),
    "match": (Sampling, "match"),
    "residual": (Sampling, "residual"),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair; its sessions are used again from prompt to prompt."""

    target: LanguageModel
    draft: LanguageModel
    sessions: tuple[TargetModelSession, DraftModelSession]
    tokens: int

    def run(self, prompt: str, sampling: Sampling, drafting: Drafting) -> tuple[list[int], Any]:
        """Ids of one generation, and its counts: rounds, proposed, accepted."""
        decoder = Decoder(target=self.target, draft=self.draft, drafting=drafting, sampler=sampling)
        generation = Generation(
            decoder,
            decoder.prompt(prompt),
            max_tokens=self.tokens,
            target_session=self.sessions[0],
            draft_session=self.sessions[1],
        )
        for _ in generation:
            pass
        found = generation.statistics
        counts = (found.rounds, found.num_draft_tokens, found.num_accepted_draft_tokens)
        return list(generation.context.emitted), counts


def interval(counts: NDArray[np.int64], base: NDArray[np.int64]) -> tuple[float, float]:
    """95 % of the differences of accepted per round, generations drawn with replacement."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(counts), (2000, len(counts)))
    ours, theirs = counts[drawn].sum(axis=1), base[drawn].sum(axis=1)
    low, high = np.quantile(ours[:, 2] / ours[:, 0] - theirs[:, 2] / theirs[:, 0], (0.025, 0.975))
    return float(low), float(high)


def rows(found: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    for (translation, name), each in found.items():
        counts = np.array(each)
        rounds, proposed, accepted = counts.sum(axis=0)
        against = [
            _against(counts, np.array(found[translation, base])) if base != name else ""
            for base in ("greedy", "match")
        ]
        yield (
            f"| {translation} | {name} | {rounds} | {accepted / rounds:.3f} "
            f"| {accepted / proposed:.3f} | {' | '.join(against)} |"
        )


def _against(counts: NDArray[np.int64], base: NDArray[np.int64]) -> str:
    """The difference of accepted per round, with its interval."""
    low, high = interval(counts, base)
    ours, theirs = counts.sum(axis=0), base.sum(axis=0)
    return f"{ours[2] / ours[0] - theirs[2] / theirs[0]:+.3f} ({low:+.3f} to {high:+.3f})"


@click.command()
@click.option("--data", type=_PATH, default=ROOT.parent / "shared" / "data")
@click.option("--draft", default="draft-llama-tiny", show_default=True)
@click.option("--limit", type=int, default=10, show_default=True, help="Prompts.")
@click.option("--tokens", type=int, default=48, show_default=True, help="Of each output.")
@click.option("--num-draft-tokens", type=int, default=2, show_default=True)
@click.option("--alternatives", type=int, default=0, show_default=True)
@click.option("--temp", type=float, default=0.8, show_default=True)
@click.option("--top-p", type=float, default=0.0, show_default=True)
@click.option("--seeds", type=int, default=3, show_default=True)
def benchmark(
    data: Path,
    draft: str,
    limit: int,
    tokens: int,
    num_draft_tokens: int,
    alternatives: int,
    temp: float,
    top_p: float,
    seeds: int,
) -> None:
    """Decode every prompt under every condition; exit 1 if a matched text differs from plain."""
    folder = data / "models" / "target-bielik-tiny"
    target = LanguageModel.from_folder(folder, dtype="float32")
    own = LanguageModel.from_folder(data / "models" / draft, dtype="float32")
    tables = cache(
        lambda: open_alignment(target.tokenizer, own.tokenizer, otherwise=align, beside=folder)
    )
    sessions = TargetModelSession(target.model), DraftModelSession(own.model)
    bench = Bench(target=target, draft=own, sessions=sessions, tokens=tokens)
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    differing = 0
    texts = read_texts(data / "corpus" / "dev" / "prompts.txt", limit=limit)
    runs = [(text, seed) for seed in range(seeds) for text in texts]
    for text, seed in track(runs, console=Console(stderr=True)):
        how: dict[str, Any] = {"temperature": temp, "top_p": top_p, "seed": seed}
        plain, _ = bench.run(text, Sampling(**how), Drafting(method="plain"))
        for translation in ("intersection", "exact"):
            drafting = Drafting(
                method="draft",
                translation=translation,
                num_draft_tokens=num_draft_tokens,
                alternatives=alternatives,
                alignment=tables,
            )
            for name, (kind, acceptance) in GUESSES.items():
                ids, counts = bench.run(text, kind(acceptance=acceptance, **how), drafting)
                found[translation, name].append(counts)
                differing += acceptance == "match" and ids != plain
    click.echo(HEADER)
    for row in rows(found):
        click.echo(row)
    click.echo(f"\ntexts that differ from plain decoding's under match: {differing}")
    sys.exit(differing > 0)


if __name__ == "__main__":
    benchmark()
