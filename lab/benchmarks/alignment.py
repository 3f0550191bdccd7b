"""The ladder of translations: accepted target tokens per round, with a bootstrap interval.

    python -m lab.benchmarks.alignment --draft-model MODEL --target NAME --text FILE [-k 2] \
        [--limit N]

Reference texts play the target's output and a draft model drafts, so the figures do not depend on
the hardware. The published translations come first, then `exact` without some of its parts, then
`exact` itself. `--only "intersection, tree"` grows a tree; `--only none` and `--only "none, tree"`
are for a draft model with the target's vocabulary. The interval is a 95 % bootstrap over 1,000
resamples of the texts. "rows" counts the rows that the target would verify in a round.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from lab.benchmarks.reference_texts import ReferenceTexts, reference_texts
from tokalign.runtime.methods import DEFAULT_ALTERNATIVES
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.rounds import Round
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Translation
from tokalign.runtime.translation.cover_search import CoverSearch
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.tokenizer.vocabulary import TargetId

PUBLISHED = ("naive", "context:5", "intersection")
PARTS = {
    "exact, no mask": (CoverSearch(mask=False), 0),
    "exact, no healing": (CoverSearch(max_back=0), 0),
    "exact, chain only": (CoverSearch(), 0),
    "exact": (CoverSearch(), DEFAULT_ALTERNATIVES),
}
"""The cover search of each row, and how many alternatives a tree has; 0 for a chain."""

TREE = ", tree"
"""Ends the name of a published translation with a tree."""

HEADER = """\
| translation | accepted/round | 95 % | acceptance | rows | empty | passes | host p50 ms | p99 |
|---|---|---|---|---|---|---|---|---|"""


def row(given: ReferenceTexts, session: DraftModelSession, name: str) -> str:
    """Replay every text with one translation."""
    statistics, per_text = Statistics(), []
    published = name.removesuffix(TREE)
    default = None, 0 if name == published else DEFAULT_ALTERNATIVES
    search, alternatives = PARTS.get(name, default)
    for ids in track(given.texts, name, console=Console(stderr=True), transient=True):
        translation = exact(given, ids, search) if search else given.translation(published, ids)
        rounds = accepted = 0
        for event in given.play(ids, session, translation, alternatives=alternatives):
            statistics.observe(event)
            if isinstance(event, Round):
                rounds, accepted = rounds + 1, accepted + event.accepted
        per_text.append((accepted, rounds))
    low, high = bootstrap(per_text)
    return (
        f"| {name} | {statistics.accepted_per_round:.3f} | {low:.3f}–{high:.3f} "
        f"| {statistics.draft_acceptance_rate:.3f} | {statistics.rows_per_round:.2f} "
        f"| {statistics.empty_rounds / statistics.rounds:.1%} "
        f"| {statistics.draft_passes_per_round:.2f} "
        f"| {statistics.host_ms_per_round['p50']:.2f} "
        f"| {statistics.host_ms_per_round['p99']:.2f} |"
    )


def exact(given: ReferenceTexts, ids: Sequence[TargetId], search: CoverSearch) -> Translation:
    """The translation `exact` of one text, with a given cover search."""
    text = given.prompt(ids).draft_text(given.pair)
    return ExactTranslation(given.pair, text, given.alignment, search)


def bootstrap(per_text: Sequence[tuple[int, int]], *, resamples: int = 1000) -> tuple[float, float]:
    """95 % interval of accepted / rounds over resampled texts."""
    counts = np.array(per_text)
    drawn = np.random.default_rng(0).integers(len(counts), size=(resamples, len(counts)))
    accepted, rounds = counts[drawn].sum(axis=1).T
    low, high = np.quantile(accepted / rounds, [0.025, 0.975])
    return float(low), float(high)


@click.command()
@reference_texts(steps=2, limit=None)
@click.option("--only", multiple=True, help="Rows to run; all by default.")
def main(given: ReferenceTexts, *, only: tuple[str, ...]) -> None:
    """Print one row per translation."""
    session = DraftModelSession(given.model.model)
    print(f"{given}\n\n{HEADER}")
    for name in only or (*PUBLISHED, *PARTS):
        print(row(given, session, name), flush=True)


if __name__ == "__main__":
    main()
