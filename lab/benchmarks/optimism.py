"""Whether a dictionary knows how often it is right: one number for all, or measured for each table.

    python -m lab.benchmarks.optimism --target mistral FILE... [--text dev/wiki.jsonl]

Runs of 100 lines are held out of the corpus files, as in `crimean_tatar.py`. Two tables of 5 MB are
built from the rest: in one, log-odds are lowered by 0.5 whatever the length of the context; in the
other by what `build/dictionary/optimism.py` measures. Printed are, for the held-out lines and for
each `--text`: tokens per pass as a chain if rows are free, rows, tokens per time of a plain pass at
5 % per row, the probability that the answers claim on average and how many of them are right, by
how much log-odds are still too high, and the log-loss in nats.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from lab.benchmarks.crimean_tatar import hold_out
from tokalign.build.corpus import Corpus
from tokalign.build.counting.token_ngrams import count_token_ngrams
from tokalign.build.dictionary.backoff import make_table, measure_optimism
from tokalign.build.dictionary.ngram_tree import Level, grow_tree
from tokalign.build.dictionary.optimism import USUAL
from tokalign.cli.output import print_json
from tokalign.cli.texts import read_texts
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.replay import emulate
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.drafting import ASSUMED_COSTS, Drafting
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MOST_TOKENS, MOST_LINES = 40_000, 400
TABLE_BYTES = 4_990_000

Texts = list[list[TargetId]]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--target", default="mistral", show_default=True)
@click.option("--text", "others", multiple=True, type=click.Path(path_type=Path, exists=True))
def benchmark(files: tuple[Path, ...], target: str, others: tuple[Path, ...]) -> None:
    """Print one JSON object for each table and text."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    rest, held = hold_out(Corpus(files).lines(), "blocks", count=MOST_LINES)
    texts = {"held out": held[:MOST_LINES]}
    texts |= {path.name: list(read_texts(path)) for path in others}
    encoded = {name: _first(tokenizer.encode_batch(some)) for name, some in texts.items()}
    levels = _count(rest, tokenizer)
    size = len(tokenizer.vocabulary)
    measured = measure_optimism(levels, vocabulary_size=size, max_bytes=TABLE_BYTES)
    for optimism in ([USUAL] * len(measured), measured):
        table = make_table(levels, vocabulary_size=size, max_bytes=TABLE_BYTES, optimism=optimism)
        for name, ids in encoded.items():
            about = {"characters": sum(map(len, rest)), "optimism": optimism, "text": name}
            print_json(about | saved(table, ids) | calibration(table, ids))


def _first(texts: Texts) -> Texts:
    """The first texts that have enough tokens together."""
    ends = np.cumsum([len(ids) for ids in texts])
    return texts[: int(np.searchsorted(ends, MOST_TOKENS)) + 1]


def _count(lines: Sequence[str], tokenizer: Tokenizer[TargetId]) -> list[Level]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return grow_tree(count_token_ngrams(Corpus([path]), tokenizer, max_order=MAX_CONTEXT + 1))


def saved(table: BackoffTable, texts: Texts, costs: Costs = ASSUMED_COSTS) -> dict[str, float]:
    """Tokens per pass as a chain, and per time of a plain pass."""
    found = emulate(Drafting(method="dictionary", dictionary=table), texts)
    each = 1 + (costs.verify(2) - costs.verify(1)) * (found.rows_per_round - 1)
    return {
        "tokens_per_pass": round(found.tokens_per_round, 4),
        "rows": round(found.rows_per_round, 3),
        "priced": round(found.tokens_per_round / each, 4),
    }


def calibration(table: BackoffTable, texts: Texts) -> dict[str, float]:
    """What the answers claim at every position of the texts, and how many are right."""
    pairs = [
        (answer[1], answer[0] == ids[at])
        for ids in texts
        for at in range(1, len(ids))
        if (answer := table.predict(ids[max(0, at - MAX_CONTEXT) : at])) and 0 < answer[1] < 1
    ]
    claimed = np.array([p for p, _ in pairs])
    right = np.array([was for _, was in pairs], dtype=float)
    loss = -(right * np.log(claimed) + (1 - right) * np.log1p(-claimed)).mean()
    return {
        "claimed": round(float(claimed.mean()), 4),
        "right": round(float(right.mean()), 4),
        "too_high_by": round(_excess(claimed, float(right.sum())), 2),
        "log_loss": round(float(loss), 4),
    }


def _excess(claimed: np.ndarray, right: float) -> float:
    """By how much the log-odds have to be lowered for the probabilities to add up to `right`."""
    odds = np.log(claimed) - np.log1p(-claimed)
    low, high = -4.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        too_many = (1 / (1 + np.exp(middle - odds))).sum() > right
        low, high = (middle, high) if too_many else (low, middle)
    return low


if __name__ == "__main__":
    benchmark()
