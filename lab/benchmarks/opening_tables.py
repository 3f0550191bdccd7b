"""How long opening each shipped table of Bielik takes, every check included.

    python -m lab.benchmarks.opening_tables

Prints the best and the median of 20 openings in milliseconds; the files are in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

from tokalign.build.alignment.alignment_bundle import align
from tokalign.names.registry import resolve_tokenizer
from tokalign.shipped import TABLES, shipped
from tokalign.tables.opening import open_alignment, open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

OPENINGS = 20


def measure(name: str, opening: Callable[[], object]) -> None:
    """Print the times of one table."""
    times = []
    for _ in range(OPENINGS):
        began = perf_counter()
        opening()
        times.append((perf_counter() - began) * 1e3)
    print(f"{name}: best {min(times):.2f} ms, median {median(times):.2f} ms")


def main() -> None:
    """Open the dictionary and the alignments."""
    folder = shipped(TABLES) / "bielik"
    target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
    file = folder / "pl.dictionary.tok"
    measure(file.name, lambda: open_dictionary(target, files=[file]))
    for name in ("llama3.2", "qwen2.5"):
        draft: Tokenizer[DraftId] = resolve_tokenizer(name).tokenizer
        path = folder / f"{name}.alignment.tok"
        opening = partial(open_alignment, target, draft, otherwise=align, file=path)
        measure(path.name, opening)


if __name__ == "__main__":
    main()
