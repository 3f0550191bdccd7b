"""Why DictSpec saves less on our Cyrillic Crimean Tatar than its paper says: one change at a time.

    python benchmarks/crimean_tatar_gap.py texts --data DATA [--vocabulary mistral] [--texts 500]
    python benchmarks/crimean_tatar_gap.py readings --data DATA

The paper's texts are QIRIM's, with 1,333,103 words to build from and 535,156 to decode; ours have
about 755,000 and 84,000. Every row changes one thing of `crimean_tatar.py`: how much text the table
is built from, how lines are held out, whether lines are decoded one by one or as running text, and
how many of the held-out lines are also in the text that was counted, as happens where a corpus
repeats itself. DictSpec with 200,000 n-grams of order 1-3 and p_min 0.2, and the back-off table.
`readings` leaves the text as it is, and changes what the paper leaves open about the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from crimean_tatar import PAPER, SPLITS, figures, measure

from tokalign.build.corpus import Corpus
from tokalign.build.counting.word_ngrams import count_word_ngrams
from tokalign.build.dictionary.dictspec import (
    EncodedNgram,
    find_continuations,
    likeliest_next_id,
)
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import emulate
from tokalign.runtime.drafting import Drafting
from tokalign.tables.dictionary import MAX_CONTINUATION, Ids
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

NGRAMS = 200_000


def joined(lines: Sequence[str], count: int) -> list[str]:
    """The lines as texts of `count` lines each."""
    return [" ".join(lines[at : at + count]) for at in range(0, len(lines), count)]


def most_probable_rest(ngrams: Iterable[EncodedNgram], length: int) -> tuple[Ids, float]:
    """The most probable rest as a whole, and its probability.

    The probability is the rest's share among the n-grams of one order.
    """
    orders: Counter[int] = Counter()
    rests: Counter[tuple[int, Ids]] = Counter()
    for ids, order, occurrences in ngrams:
        orders[order] += occurrences
        rests[order, ids[length : length + MAX_CONTINUATION]] += occurrences
    shares = {(order, rest): count / orders[order] for (order, rest), count in rests.items()}
    best = max(shares, key=lambda one: (shares[one], len(one[1]), one))
    return best[1], shares[best]


@click.group()
def benchmark() -> None:
    """One change at a time: of the texts, or of how the paper is read."""


@benchmark.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--texts", default=300, show_default=True, help="Held-out lines that are decoded.")
def readings(data: Path, texts: int) -> None:
    """Print one JSON object for each script, vocabulary and reading of p_min."""
    for name, script in PAPER:
        tokenizer: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
        lines = list(Corpus([data / "corpus" / "crh" / f"{script}.txt.zst"]).lines())
        held = [line for number, line in enumerate(lines) if number % 10 == 0]
        decoded = tokenizer.encode_batch(held[:: max(1, len(held) // texts)][:texts])
        counted = count_word_ngrams(line for number, line in enumerate(lines) if number % 10)
        for choose, p_min in (
            (likeliest_next_id, 0.2),
            (most_probable_rest, 0.2),
            (most_probable_rest, 0.0),
        ):
            kept = counted.most_frequent(NGRAMS)
            table = find_continuations(kept, tokenizer, p_min=p_min, choose=choose)
            found = figures(emulate(Drafting(method="dictionary", dictionary=table), decoded))
            about = {"script": script, "vocabulary": name, "reading": choose.__name__}
            print_json({**about, "p_min": p_min, **found, "paper": PAPER[name, script]})


@benchmark.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--vocabulary", default="mistral", show_default=True)
@click.option("--script", default="crh_cyr", show_default=True)
@click.option(
    "--texts", "count", default=500, show_default=True, help="Held-out lines that are decoded."
)
def texts(data: Path, vocabulary: str, script: str, count: int) -> None:
    """Print one JSON object for each condition."""
    lines = list(Corpus([data / "corpus" / "crh" / f"{script}.txt.zst"]).lines())
    held = [line for number, line in enumerate(lines) if number % 10 == 0]
    rest = [line for number, line in enumerate(lines) if number % 10]
    sample = held[:: max(1, len(held) // count)]
    blocks = [line for number, line in enumerate(lines) if SPLITS["blocks"](number)]
    others = [line for number, line in enumerate(lines) if not SPLITS["blocks"](number)]
    conditions = {
        "as in crimean_tatar.py": (rest, sample),
        "a quarter of the text": (rest[::4], sample),
        "half of the text": (rest[::2], sample),
        "runs of 100 lines held out": (others, blocks[:: max(1, len(blocks) // count)]),
        "running text of 20 lines": (rest, joined(held[: 2 * count], 20)),
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
