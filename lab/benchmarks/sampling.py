"""Sampled decoding: how much of a draft model's proposals is accepted, by how its ids are chosen.

    python -m lab.benchmarks.sampling [--data FOLDER] [--draft MODEL] [--temp 0.8] [--seeds 3]

Three conditions for each translation, interleaved prompt by prompt and seed by seed:

* `greedy`: the draft takes its most probable ids, as in sampler-match as it is published;
* `match`: the draft draws with the noise of the target, so the text is that of plain decoding;
* `match, tree`: so it does, but it grows a tree of what the target may choose with that noise;

It prints for each condition the rounds, accepted tokens per round, acceptance per proposed token,
and the differences of accepted tokens per round to `greedy` and to `match`, with 95 % bootstrap
intervals over (prompt, seed) pairs. Exit 1 if a `match` text differs from that of plain decoding.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from tokalign.assemble import load_decoder
from tokalign.cli.bench_options import read_texts
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES, DraftingOptions
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession

ROOT = Path(__file__).resolve().parents[2]
TRANSLATIONS = ("intersection", "exact")
HEADER = """\
| translation | drafts | rounds | accepted/round | acceptance | against greedy | against match |
|---|---|---|---|---|---|---|"""
_PATH = click.Path(path_type=Path, exists=True)


class GreedyDrafts(Sampling):
    """Sampler-match with drafts that take their most probable ids."""

    __slots__ = ()

    def draft_sampler(self, vocabulary: int) -> None:
        return None


CHOICES: dict[str, tuple[type[Sampling], bool]] = {
    "greedy": (GreedyDrafts, False),
    "match": (Sampling, False),
    "match, tree": (Sampling, True),
}
"""For each condition how ids are chosen, and whether trees are drafted."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair; its sessions are used again from prompt to prompt."""

    decoder: Decoder
    sessions: tuple[TargetModelSession, DraftModelSession | None]
    tokens: int

    def run(self, prompt: str, sampling: Sampling, drafting: Drafting) -> tuple[list[int], Any]:
        """Ids of one generation, and its counts: rounds, proposed, accepted."""
        decoder = replace(self.decoder, drafting=drafting, sampler=sampling)
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
    """A 95 % bootstrap interval of the difference in accepted tokens per round."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(counts), (2000, len(counts)))
    ours, theirs = counts[drawn].sum(axis=1), base[drawn].sum(axis=1)
    low, high = np.quantile(ours[:, 2] / ours[:, 0] - theirs[:, 2] / theirs[:, 0], (0.025, 0.975))
    return float(low), float(high)


def rows(found: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    """One table row per condition."""
    for (translation, name), each in found.items():
        counts = np.array(each)
        rounds, proposed, accepted = counts.sum(axis=0)
        against = [
            _against(counts, np.array(found[translation, base]))
            if base != name and (translation, base) in found
            else ""
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
@click.option("--alternatives", default=DEFAULT_ALTERNATIVES, show_default=True, help="Of trees.")
@click.option("--temp", type=float, default=0.8, show_default=True)
@click.option("--top-p", type=float, default=0.0, show_default=True)
@click.option("--seeds", type=int, default=3, show_default=True)
@click.option("--translation", "translations", multiple=True, default=TRANSLATIONS)
@click.option("--only", multiple=True, default=tuple(CHOICES), help="Conditions to run.")
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
    translations: tuple[str, ...],
    only: tuple[str, ...],
) -> None:
    """Decode every prompt under every condition; exit 1 if a matched text differs from plain."""
    options = DraftingOptions(method="draft", num_draft_tokens=num_draft_tokens)
    models = data / "models"
    decoder = load_decoder(
        str(models / "target-bielik-tiny"), str(models / draft), options, dtype="float32"
    )
    sessions = decoder.open_target(), decoder.open_draft()
    bench = Bench(decoder=decoder, sessions=sessions, tokens=tokens)
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    differing = 0
    texts = read_texts(data / "corpus" / "dev" / "prompts.txt", limit=limit)
    runs = [(text, seed) for seed in range(seeds) for text in texts]
    for text, seed in track(runs, console=Console(stderr=True)):
        how: dict[str, Any] = {"temperature": temp, "top_p": top_p, "seed": seed}
        plain, _ = bench.run(text, Sampling(**how), Drafting(method="plain"))
        for translation in translations:
            drafting = replace(decoder.drafting, translation=translation)
            for name in only:
                kind, tree = CHOICES[name]
                how_many = replace(drafting, alternatives=alternatives if tree else 0)
                ids, counts = bench.run(text, kind(**how), how_many)
                found[translation, name].append(counts)
                differing += ids != plain
    click.echo(HEADER)
    for row in rows(found):
        click.echo(row)
    click.echo(f"\ntexts that differ from plain decoding's under match: {differing}")
    sys.exit(differing > 0)


if __name__ == "__main__":
    benchmark()
