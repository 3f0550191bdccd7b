"""What DictSpec's paper leaves open about its table, built one way and another.

    python benchmarks/dictspec_readings.py --data DATA [--only READING] [--split SPLIT] [--ngrams N]

Does the next id have to reach p_min, or the whole rest? Is a probability a share of the n-grams of
one order, or of all? The tables are built of each Crimean Tatar script and vocabulary of the
paper's Table 4, and decode running text as in `crimean_tatar.py`. N-grams are of order 1-3. The
reading `deployed` is what the paper ran on live models: p_min 0.8, and drafts of at most 4 ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click
from crimean_tatar import PAPER, SPLITS, figures, held_out

from tokalign.build.counting.word_ngrams import count_word_ngrams
from tokalign.build.dictionary.dictspec import (
    Choose,
    EncodedNgram,
    find_continuations,
    likeliest_next_id,
)
from tokalign.cli.output import print_json
from tokalign.evaluate.replay import emulate
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.drafting import Drafting
from tokalign.tables.dictionary import MAX_CONTINUATION, Ids
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


class Reading(NamedTuple):
    """How a table is built and used. longest: ids of a draft; None for the default of 8."""

    choose: Choose
    p_min: float
    longest: int | None = None


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


READINGS = {
    "next id": Reading(likeliest_next_id, 0.2),
    "whole rest": Reading(most_probable_rest, 0.2),
    "whole rest, no p_min": Reading(most_probable_rest, 0.0),
    "next id, orders pooled": Reading(pooled, 0.2),
    "deployed": Reading(likeliest_next_id, 0.8, longest=4),
}


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--lines", default=300, show_default=True, help="Held-out lines that are decoded.")
@click.option("--joined", default=20, show_default=True, help="Of them in a text.")
@click.option("--only", type=click.Choice(list(READINGS)), multiple=True, default=list(READINGS))
@click.option("--split", type=click.Choice(list(SPLITS)), default="every tenth line")
@click.option("--ngrams", default=200_000, show_default=True)
def benchmark(
    data: Path, lines: int, joined: int, only: tuple[str, ...], split: str, ngrams: int
) -> None:
    """Print one JSON object for each script, vocabulary and reading."""
    for name, script in PAPER:
        tokenizer: Tokenizer[TargetId] = resolve_tokenizer(name).tokenizer
        rest, texts = held_out(data, script, count=lines, joined=joined, split=split)
        decoded, counted = tokenizer.encode_batch(texts), count_word_ngrams(rest)
        for reading in only:
            choose, p_min, longest = READINGS[reading]
            kept = counted.most_frequent(ngrams)
            table = find_continuations(kept, tokenizer, p_min=p_min, choose=choose)
            drafting = Drafting(method="dictionary", dictionary=table, num_draft_tokens=longest)
            about = {"script": script, "vocabulary": name, "reading": reading, "split": split}
            found = {"prefixes": len(table), **figures(emulate(drafting, decoded))}
            print_json({**about, **found, "paper": PAPER[name, script]})


if __name__ == "__main__":
    benchmark()
