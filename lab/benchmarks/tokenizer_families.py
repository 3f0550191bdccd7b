"""What a round costs the host with each tokenizer, as draft and as target, in a long context.

    python -m lab.benchmarks.tokenizer_families FOLDER... [--tokens 8000]

FOLDER: models' folders or folders of tokenizers. The text is the bundled corpus, which plays the
output, two target tokens a round. As draft: the encoding of the text is kept up to date, for
Bielik's tokenizer as the target. As target: the boundary is moved, and twelve likely texts are
encoded after it and judged. Prints one line per tokenizer: level, and the median and the 99th
percentile of a round in microseconds at 200 tokens and at the end.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.translation.boundary import Boundary
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.shipped import CORPORA, shipped
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer

GUESSES = ("a", "ie", " i", " w", "cie", ", ", ".\n", "ów", " nie", "1", " po", "ego")
"""What a draft could go on with anywhere in Polish text."""

ROUNDS = 200


def main() -> None:
    """Read the folders, time both sides, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=8000)
    args = parser.parse_args()
    bielik: Tokenizer[Any] = resolve_tokenizer("bielik").tokenizer
    print(f"{'tokenizer':24} {'level':10} draft: p50 p99 short, long   target: p50 p99 short, long")
    for folder in args.folders:
        one: Tokenizer[Any] = resolve_tokenizer(str(folder)).tokenizer
        if one.level is Level.IDS_ONLY:
            print(f"{folder.name:24} {one.level:10} {one.spec.why}")
            continue
        sides = (*time_draft(bielik, one, args.tokens), *time_target(one, args.tokens))
        figures = "   ".join(f"{p50:6.0f} {p99:6.0f}" for p50, p99 in sides)
        print(f"{folder.name:24} {one.level:10} {figures}", flush=True)


def text(tokenizer: Tokenizer[Any], tokens: int) -> list[Any]:
    """Ids of running text, so many of them."""
    corpus = (shipped(CORPORA) / "pl-mini.txt").read_text("utf-8")
    ids: list[Any] = []
    while len(ids) < tokens:
        ids += tokenizer.encode(corpus)
    return ids[:tokens]


def time_draft(
    target: Tokenizer[Any], draft: Tokenizer[Any], tokens: int
) -> Iterator[tuple[float, float]]:
    """Follow the target's text, in a short context and in a long one."""
    ids = text(target, tokens)
    for end in (200 + 2 * ROUNDS, tokens):
        view = DraftText(target, draft)
        view.follow(ids[: end - 2 * ROUNDS])
        yield timed(view.follow, ids, end)


def time_target(target: Tokenizer[Any], tokens: int) -> Iterator[tuple[float, float]]:
    """Move the boundary and judge guesses, in a short context and in a long one."""
    ids = text(target, tokens)
    guesses = [guess.encode() for guess in GUESSES]
    for end in (200 + 2 * ROUNDS, tokens):
        boundary = Boundary(target)
        boundary.follow(ids[: end - 2 * ROUNDS])

        def judge(so_far: Sequence[Any], boundary: Boundary = boundary) -> None:
            boundary.follow(so_far)
            for guess in guesses:
                if boundary.encode(guess) is None:
                    boundary.absorbs(guess)

        yield timed(judge, ids, end)


def timed(step: Callable[[list[Any]], object], ids: list[Any], end: int) -> tuple[float, float]:
    """The median and the 99th percentile, in microseconds, of the last rounds before `end`."""
    took = []
    for _, now in pairwise(range(end - 2 * ROUNDS, end + 1, 2)):
        so_far = ids[:now]
        started = perf_counter()
        step(so_far)
        took.append(1e6 * (perf_counter() - started))
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


if __name__ == "__main__":
    main()
