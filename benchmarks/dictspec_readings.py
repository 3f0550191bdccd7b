"""What DictSpec's paper leaves open about its table, built one way and another.

    python benchmarks/dictspec_readings.py --data DATA [--only READING]

Does the next id have to reach p_min, or the whole rest? Is a probability a share of the n-grams of
one order, or of all? The tables are built of each Crimean Tatar script and vocabulary of the
paper's Table 4, and decode running text as in `crimean_tatar.py`. 200,000 n-grams of order 1-3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
from crimean_tatar import PAPER, figures, held_out

from tokalign.build.counting.word_ngrams import count_word_ngrams
from tokalign.build.dictionary.dictspec import (
    Choose,
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


def pooled(ngrams: Iterable[EncodedNgram], length: int) -> tuple[Ids, float]:
    """As `likeliest_next_id`, but a probability is the id's share among n-grams of all orders."""
    return likeliest_next_id((ngram._replace(order=1) for ngram in ngrams), length)


READINGS: dict[str, tuple[Choose, float]] = {
    "next id": (likeliest_next_id, 0.2),
    "whole rest": (most_probable_rest, 0.2),
    "whole rest, no p_min": (most_probable_rest, 0.0),
    "next id, orders pooled": (pooled, 0.2),
}


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--lines", default=300, show_default=True, help="Held-out lines that are decoded.")
@click.option("--joined", default=20, show_default=True, help="Of them in a text.")
@click.option("--only", type=click.Choice(list(READINGS)), multiple=True, default=list(READINGS))
def benchmark(data: Path, lines: int, joined: int, only: tuple[str, ...]) -> None:
    """Print one JSON object for each script, vocabulary and reading."""
    for name, script in PAPER:
        tokenizer: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
        rest, texts = held_out(data, script, count=lines, joined=joined)
        decoded, counted = tokenizer.encode_batch(texts), count_word_ngrams(rest)
        for reading in only:
            choose, p_min = READINGS[reading]
            kept = counted.most_frequent(NGRAMS)
            table = find_continuations(kept, tokenizer, p_min=p_min, choose=choose)
            found = figures(emulate(Drafting(method="dictionary", dictionary=table), decoded))
            about = {"script": script, "vocabulary": name, "reading": reading}
            print_json({**about, **found, "paper": PAPER[name, script]})


if __name__ == "__main__":
    benchmark()
