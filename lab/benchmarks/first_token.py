"""How often the next target token is right: the guess of `exact`, and an oracle's.

    python -m lab.benchmarks.first_token --draft-model MODEL --target NAME --text FILE [--every 8]

The oracle is what the draft model says of the next target token if nothing is cut short
(`tokalign/evaluate/study/oracle.py`). `exact` looks at far fewer covers. "covers" is its guess
after one pass, the other rows grow a tree.
"""

from __future__ import annotations

from collections import Counter

import click
from rich.console import Console
from rich.progress import track

from lab.benchmarks.alignment import bootstrap
from lab.benchmarks.reference_texts import ReferenceTexts, reference_texts
from lab.study.oracle import Oracle
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.rounds import Context
from tokalign.runtime.translation.exact import ExactTranslation


@click.command()
@reference_texts(steps=2, limit=None)
@click.option("--every", default=8, show_default=True, help="Positions from one to the next.")
def main(given: ReferenceTexts, *, every: int) -> None:
    """Print the share of positions where each guess is right."""
    session = DraftModelSession(given.model.model)
    right: dict[str, list[tuple[int, int]]] = {}
    for ids in track(given.texts, console=Console(stderr=True), transient=True):
        counts, positions = Counter[str](), range(given.prompt_tokens, len(ids) - 1, every)
        text = given.prompt(ids).draft_text(given.pair)
        exact = ExactTranslation(given.pair, text, given.alignment)
        oracle = Oracle(given.pair, given.alignment, given.prompt(ids))
        for position in positions:
            committed, following = ids[:position], ids[position]
            for name, steps in (("covers", 1), ("exact", given.steps)):
                found = exact.draft(
                    Context(committed), session, steps, alternatives=4, learned=lambda n: [0.5] * n
                )
                counts[name] += found.tree.ids[:1] == (following,)
            counts["oracle"] += oracle.guess(committed, session) == following
        for name in ("covers", "exact", "oracle"):
            right.setdefault(name, []).append((counts[name], len(positions)))
    print(f"{given}, {sum(n for _, n in right['oracle'])} positions\n")
    print("| guess | right | 95 % | to the oracle's | 95 % |\n|---|---|---|---|---|")
    for name, each in right.items():
        beside = [(a, b) for (a, _), (b, _) in zip(each, right["oracle"], strict=True)]
        print(f"| {name} | {_share(each)} | {_share(beside)} |")


def _share(of_texts: list[tuple[int, int]]) -> str:
    """A share over all texts, and its interval over resampled ones."""
    low, high = bootstrap(of_texts)
    share = sum(a for a, _ in of_texts) / sum(n for _, n in of_texts)
    return f"{share:.3f} | {low:.3f}–{high:.3f}"


if __name__ == "__main__":
    main()
