"""What dictionaries save on Crimean Tatar, compared with Table 4 of the DictSpec paper.

    python -m lab.benchmarks.crimean_tatar --data DATA

DATA holds corpus/crh/crh_cyr.txt.zst and crh_lat.txt.zst. Every tenth line is held out and decoded
with dictionaries of the other nine tenths. `--split blocks` holds out runs of 100 lines instead, so
that the neighbours of a held-out line are rarely in the dictionary, and `--split "last tenth"` the
end of the file, so that hardly any document is in both parts. Texts have 20 held-out lines: in one
of one line the first word has no space before it, and is encoded unlike in running text by all
vocabularies but SentencePiece's.

Table 4 prints the best configuration of a sweep. The paper finds n-grams of order 1-3 and p_min 0.2
best everywhere, so here only the number of n-grams is varied, and the best is printed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from lab.dictspec.builder import find_continuations
from lab.dictspec.word_ngrams import count_word_ngrams
from tokalign.build.corpus import Corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import emulate
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import Dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PAPER = {
    ("mistral", "crh_cyr"): (1.65, 0.77, 0.84, 0.18),
    ("mistral", "crh_lat"): (1.35, 0.69, 0.50, 0.08),
    ("mistral-nemo", "crh_cyr"): (1.51, 0.73, 0.70, 0.18),
    ("mistral-nemo", "crh_lat"): (1.21, 0.61, 0.34, 0.07),
    ("llama3.2", "crh_cyr"): (1.61, 0.77, 0.79, 0.18),
    ("llama3.2", "crh_lat"): (1.22, 0.62, 0.36, 0.07),
}
"""Speed-up, coverage, mean accepted length and acceptance, by vocabulary and script."""

SPLITS: dict[str, Callable[[int, int], bool]] = {
    "every tenth line": lambda number, _: number % 10 == 0,
    "blocks": lambda number, _: number // 100 % 10 == 0,
    "last tenth": lambda number, lines: number >= lines - lines // 10,
}
"""Whether a line is held out, by its number and the number of lines."""


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--vocabulary",
    "names",
    multiple=True,
    default=("mistral", "llama3.2", "qwen2.5", "mistral-nemo"),
)
@click.option("--ngrams", "sizes", type=int, multiple=True, default=(200_000, 1_000_000))
@click.option("--split", type=click.Choice(list(SPLITS)), default="every tenth line")
@click.option("--lines", "count", default=1500, show_default=True, help="Lines that are decoded.")
@click.option("--joined", default=20, show_default=True, help="Of them in a text.")
def benchmark(
    data: Path, names: tuple[str, ...], sizes: tuple[int, ...], split: str, count: int, joined: int
) -> None:
    """Print one JSON object per script and vocabulary."""
    for script in ("crh_cyr", "crh_lat"):
        rest, texts = held_out(data, script, count=count, joined=joined, split=split)
        for name in names:
            measured = measure(name, rest, texts, sizes)
            about = {"split": split, "script": script, "vocabulary": name}
            print_json(about | measured | {"paper": PAPER.get((name, script))})


def held_out(
    data: Path, script: str, *, count: int, joined: int = 20, split: str = "every tenth line"
) -> tuple[list[str], list[str]]:
    """The lines to build from, and texts of `joined` held-out lines, about `count` in all."""
    lines = Corpus([data / "corpus" / "crh" / f"{script}.txt.zst"]).lines()
    rest, sample = hold_out(lines, split, count=count)
    return rest, [" ".join(sample[at : at + joined]) for at in range(0, len(sample), joined)]


def hold_out(lines: Iterable[str], split: str, *, count: int) -> tuple[list[str], list[str]]:
    """The lines to build from, and about `count` of the held-out ones, evenly spaced."""
    rest, held = split_lines(list(lines), split)
    return rest, held[:: max(1, len(held) // count)]


def split_lines(lines: Sequence[str], split: str) -> tuple[list[str], list[str]]:
    """The lines to build from, and those that are held out."""
    rest: list[str] = []
    held: list[str] = []
    for number, line in enumerate(lines):
        (held if SPLITS[split](number, len(lines)) else rest).append(line)
    return rest, held


def measure(
    name: str, corpus: Sequence[str], held: Sequence[str], sizes: Sequence[int]
) -> dict[str, Any]:
    """The best DictSpec table and the back-off table of one vocabulary, on held-out texts."""
    target: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
    encoded = target.encode_batch(list(held))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_text("\n".join(corpus), encoding="utf-8")
        corpus_file = Corpus([path])

        def decode(table: Dictionary) -> dict[str, float]:
            drafting = Drafting(method="dictionary", dictionary=table)
            return figures(emulate(drafting, encoded))

        counted = count_word_ngrams(corpus_file.lines())
        dictspec = {
            size: decode(find_continuations(counted.most_frequent(size), target, p_min=0.2))
            for size in sizes
        }
        built = build_dictionary(target, corpus_file, BackoffOptions(), language="crh")
        backoff = decode(BackoffTable.from_bundle(built))
    words = sum(len(line.split()) for line in held)
    best = max(sizes, key=lambda size: dictspec[size]["speedup"])
    return {
        "tokens_per_word": round(sum(map(len, encoded)) / words, 2),
        "dictspec": {"ngrams": best, **dictspec[best]},
        "dictspec_speedups": {size: found["speedup"] for size, found in dictspec.items()},
        "backoff": backoff,
    }


def figures(statistics: Statistics) -> dict[str, float]:
    """The four columns of Table 4."""
    return {
        "speedup": round(statistics.tokens_per_round, 3),
        "coverage": round(statistics.coverage, 3),
        "mean_accepted_length": round(statistics.mean_accepted_length, 3),
        "acceptance": round(statistics.draft_acceptance_rate, 3),
    }


if __name__ == "__main__":
    benchmark()
