"""Why DictSpec saves less on our Cyrillic Crimean Tatar than its paper says: one change at a time.

    python benchmarks/crimean_tatar_gap.py --data DATA [--vocabulary mistral] [--texts 500]

The paper's texts are QIRIM's, with 1,333,103 words to build from and 535,156 to decode; ours have
about 755,000 and 84,000. Every row changes one thing of `crimean_tatar.py`: how much text the table
is built from, how lines are held out, whether lines are decoded one by one or as running text, and
how many of the held-out lines are also in the text that was counted, as happens where a corpus
repeats itself. DictSpec with 200,000 n-grams of order 1-3 and p_min 0.2, and the back-off table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from crimean_tatar import SPLITS, measure

from tokalign.build.corpus import Corpus
from tokalign.cli.output import print_json

NGRAMS = 200_000


def joined(lines: Sequence[str], count: int) -> list[str]:
    """The lines as texts of `count` lines each."""
    return [" ".join(lines[at : at + count]) for at in range(0, len(lines), count)]


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--vocabulary", default="mistral", show_default=True)
@click.option("--script", default="crh_cyr", show_default=True)
@click.option("--texts", default=500, show_default=True, help="Held-out lines that are decoded.")
def benchmark(data: Path, vocabulary: str, script: str, texts: int) -> None:
    """Print one JSON object for each condition."""
    lines = list(Corpus([data / "corpus" / "crh" / f"{script}.txt.zst"]).lines())
    held = [line for number, line in enumerate(lines) if number % 10 == 0]
    rest = [line for number, line in enumerate(lines) if number % 10]
    sample = held[:: max(1, len(held) // texts)]
    blocks = [line for number, line in enumerate(lines) if SPLITS["blocks"](number)]
    others = [line for number, line in enumerate(lines) if not SPLITS["blocks"](number)]
    conditions = {
        "as in crimean_tatar.py": (rest, sample),
        "a quarter of the text": (rest[::4], sample),
        "half of the text": (rest[::2], sample),
        "runs of 100 lines held out": (others, blocks[:: max(1, len(blocks) // texts)]),
        "running text of 20 lines": (rest, joined(held[: 2 * texts], 20)),
        "a tenth of the decoded lines counted": (rest + sample[::10], sample),
        "a fifth of the decoded lines counted": (rest + sample[::5], sample),
        "all decoded lines counted": (rest + sample, sample),
    }
    for name, (corpus, decoded) in conditions.items():
        words = sum(len(line.split()) for line in corpus)
        found = measure(vocabulary, corpus, decoded, (NGRAMS,))
        print_json({"condition": name, "words": words, "vocabulary": vocabulary, **found})


if __name__ == "__main__":
    benchmark()
