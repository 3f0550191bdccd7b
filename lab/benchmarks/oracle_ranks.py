"""What sampled text leaves to a guess that knows the target's own ranks, but not its noise.

    python -m lab.benchmarks.oracle_ranks ANSWERS

ANSWERS are of `recorded_answers.py`. Of all trees of a size, the one whose paths of ranks came most
often in these answers proposes in every round; greedy answers are a chain of first ranks. Columns:
how often the first rank was chosen, and for each size the tokens per pass, and what of a chain's
gain in greedy text that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import numpy as np

from lab.benchmarks.recorded_answers import Answer, read_answers

_SIZES = 3, 7, 15
_LOST = 99
"""The rank of an id that is not among those that were recorded."""


def ranks_of(answer: Answer) -> list[int]:
    """The rank of each id in the row that it was chosen from, from 0 on."""
    found = answer.likely == np.array(answer.ids)[:, None]
    ranks: list[int] = np.where(found.any(axis=1), found.argmax(axis=1), _LOST).tolist()
    return ranks


def tokens_per_pass(answers: Sequence[Sequence[int]], size: int) -> float:
    """What the best tree of `size` ids for these answers gives."""
    counted = Counter(
        tuple(ranks[begin:end])
        for ranks in answers
        for begin in range(len(ranks))
        for end in range(begin + 1, min(begin + size, len(ranks)) + 1)
    )
    tree = {path for path, _ in counted.most_common(size)}
    passes = sum(1 for ranks in answers for _ in _rounds(ranks, tree))
    return sum(map(len, answers)) / passes


def _rounds(ranks: Sequence[int], tree: set[tuple[int, ...]]) -> Iterable[int]:
    at = 0
    while at < len(ranks):
        accepted = 0
        while at + accepted < len(ranks) - 1 and tuple(ranks[at : at + accepted + 1]) in tree:
            accepted += 1
        at += accepted + 1
        yield at


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
    """Print a line for each model and temperature."""
    answers = read_answers(folder)
    for model, temp in sorted({(one.model, one.temp) for one in answers}):
        chosen = [ranks_of(one) for one in answers if (one.model, one.temp) == (model, temp)]
        first = np.mean([rank == 0 for ranks in chosen for rank in ranks])
        found = [(size, tokens_per_pass(chosen, size)) for size in _SIZES]
        sizes = ", ".join(f"{size} ids {of:.2f} ({(of - 1) / size:.2f})" for size, of in found)
        print(f"{model}, T = {temp:g}, {len(chosen)} answers: first rank {first:.3f}; {sizes}")


if __name__ == "__main__":
    main()
