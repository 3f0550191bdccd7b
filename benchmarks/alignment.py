"""The ladder of translations: accepted target tokens per round, with a bootstrap interval.

    python benchmarks/alignment.py --draft-model MODEL --target NAME --text FILE [-k 2] [--limit N]

A reference text plays the target's output and a real draft model drafts; hardware plays no part.
Below the published translations stands `exact`, without some of its parts and whole. The interval
is over texts: 1,000 resamples of them, 95 %. Rows are what the target verifies in a round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from tokalign.alignment_tables import Alignment
from tokalign.build.alignment import align
from tokalign.cli.texts import read_texts
from tokalign.lookup import open_alignment
from tokalign.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.assembly import LanguageModel, Prompt, make_translation
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.events import Emitted
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.replay import replay
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.cover_search import CoverSearch
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.runtime.translation.published import Pair, Translation

PUBLISHED = ("naive", "context:5", "intersection")
PARTS = {
    "exact, no mask": (CoverSearch(mask=False), 0),
    "exact, no healing": (CoverSearch(max_back=0), 0),
    "exact, chain only": (CoverSearch(), 0),
    "exact, 1 alternative": (CoverSearch(), 1),
    "exact": (CoverSearch(), 2),
}
"""How far to search, and how many alternatives to propose beside the chain."""

HEADER = """\
| translation | accepted/round | 95 % | acceptance | rows | empty | passes | host p50 ms | p99 |
|---|---|---|---|---|---|---|---|---|"""


@dataclass
class Ladder:
    """A draft model and a target's tokenizer; one row per translation."""

    session: ModelSession
    pair: Pair
    texts: Sequence[Sequence[Any]]
    prompt_tokens: int
    steps: int
    alignment: Any

    def row(self, name: str) -> str:
        """Replay every text with one translation."""
        statistics, per_text = Statistics(), []
        for ids in track(self.texts, name, console=Console(stderr=True), transient=True):
            drafter = NeuralDrafter(
                self.session,
                self._translation(name, ids),
                num_draft_tokens=self.steps,
                alternatives=PARTS[name][1] if name in PARTS else 0,
            )
            rounds = accepted = 0
            for event in replay(ids, drafter, prompt_tokens=self.prompt_tokens):
                statistics.observe(event)
                if isinstance(event, Emitted):
                    rounds, accepted = rounds + 1, accepted + event.accepted
            per_text.append((accepted, rounds))
        low, high = bootstrap(per_text)
        return (
            f"| {name} | {statistics.accepted_per_round:.3f} | {low:.3f}–{high:.3f} "
            f"| {statistics.draft_acceptance_rate:.3f} | {1 + statistics.proposed_per_round:.2f} "
            f"| {statistics.empty_rounds / statistics.rounds:.1%} "
            f"| {statistics.draft_passes_per_round:.2f} "
            f"| {statistics.host_ms_per_round['p50']:.2f} "
            f"| {statistics.host_ms_per_round['p99']:.2f} |"
        )

    def _translation(self, name: str, ids: Sequence[Any]) -> Translation:
        prompt = Prompt(target=ids[: self.prompt_tokens])
        if name in PARTS:
            text = prompt.draft_text(self.pair)
            return ExactTranslation(self.pair, text, self.alignment(), PARTS[name][0])
        return make_translation(name, self.pair, prompt, self.alignment)


def bootstrap(per_text: Sequence[tuple[int, int]], *, resamples: int = 1000) -> tuple[float, float]:
    """95 % interval of accepted / rounds over resampled texts."""
    counts = np.array(per_text)
    drawn = np.random.default_rng(0).integers(len(counts), size=(resamples, len(counts)))
    accepted, rounds = counts[drawn].sum(axis=1).T
    low, high = np.quantile(accepted / rounds, [0.025, 0.975])
    return float(low), float(high)


@click.command()
@click.option("--draft-model", required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--field", "text_field", default="text", show_default=True)
@click.option("-k", "--num-draft-tokens", "steps", default=2, show_default=True)
@click.option("--prompt-tokens", default=12, show_default=True)
@click.option("--tokens", default=200, show_default=True, help="At most so many of each text.")
@click.option("--limit", type=int, help="Texts.")
@click.option("--only", multiple=True, help="Rows to run; all by default.")
def main(
    *,
    draft_model: str,
    target: str,
    text: Path,
    text_field: str,
    steps: int,
    prompt_tokens: int,
    tokens: int,
    limit: int | None,
    only: tuple[str, ...],
) -> None:
    model = LanguageModel.from_folder(resolve_model(draft_model).folder, dtype="float32")
    tokenizer = resolve_tokenizer(target).tokenizer
    texts = read_texts(text, field=text_field, limit=limit)

    def tables() -> Alignment:
        return open_alignment(tokenizer, model.tokenizer, otherwise=align)

    ladder = Ladder(
        session=ModelSession(model.model),
        pair=Pair(tokenizer, model.tokenizer),
        texts=[ids[:tokens] for ids in tokenizer.encode_batch(texts)],
        prompt_tokens=prompt_tokens,
        steps=steps,
        alignment=cache(tables),
    )
    print(f"{text.name}, {len(texts)} texts, K = {steps}\n\n{HEADER}")
    for name in only or (*PUBLISHED, *PARTS):
        print(ladder.row(name))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
