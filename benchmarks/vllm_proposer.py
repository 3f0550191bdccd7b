"""What the proposer for vLLM costs and saves.

    python benchmarks/vllm_proposer.py --data DATA [--steps 40]

DATA is the folder of the shared data; the target is Bielik 11B and the dictionary the shipped one.
The first table is host time of one call of `BatchDrafter.propose`, per request: contexts of so many
ids, cut from the Sejm speeches in corpus/dev. The columns of one request at a time are the drafters
of the MLX runtime, called for every request in a loop; they keep state from round to round, which
is not made here again and again, except for the dictionary method, which has none.
The second table has the texts of corpus/dev play the target: tokens per pass (rows are free) and
verified rows per pass. All texts of a set are one batch, and the first 64 ids of each its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np

from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay
from tokalign.runtime.context import Context
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.vllm.batch_drafter import BatchDrafter

BATCHES = (1, 8, 64)
CONTEXTS = (256, 2048)
MAX_TOKENS, PROMPT_TOKENS, LONGEST = 8, 64, 300

Texts = list[list[TargetId]]


def microseconds(call: Callable[[], object], steps: int, requests: int) -> float:
    """The median time of a call, per request."""
    call()
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times) / requests * 1e6


def print_costs(ids: Sequence[TargetId], table: BackoffTable, steps: int) -> None:
    """Print the first table."""
    alone = BatchDrafter({"dictionary": table}, copies=False, max_tokens=MAX_TOKENS)
    copies = BatchDrafter({}, max_tokens=MAX_TOKENS)
    mixed = BatchDrafter({"dictionary": table}, max_tokens=MAX_TOKENS)
    two = BatchDrafter({"dictionary:a": table, "dictionary:b": table}, max_tokens=MAX_TOKENS)
    one_by_one = DictionaryDrafter(table)
    names = ["dictionary", "copies", "both", "two dictionaries and copies"]
    print(f"µs per request | {' | '.join(names)} | dictionary, one request at a time")
    for context in CONTEXTS:
        for batch in BATCHES:
            starts = np.linspace(0, len(ids) - context - 1, batch).astype(int).tolist()
            texts = [list(ids[start : start + context]) for start in starts]
            rows = np.array(texts, dtype=np.int32)
            lengths, limits = np.full(batch, context), np.full(batch, MAX_TOKENS)
            contexts = [Context(text) for text in texts]

            def run(
                drafter: BatchDrafter,
                given: tuple[np.ndarray, np.ndarray, np.ndarray] = (rows, lengths, limits),
            ) -> object:
                return drafter.propose(*given)

            cells = [
                microseconds(lambda one=one: run(one), steps, batch)  # type: ignore[misc]
                for one in (alone, copies, mixed, two)
            ]
            cells.append(
                microseconds(
                    lambda given=contexts: [  # type: ignore[misc]
                        one_by_one.propose(context, MAX_TOKENS) for context in given
                    ],
                    steps,
                    batch,
                )
            )
            shown = " | ".join(f"{cell:.1f}" for cell in cells)
            print(f"batch {batch}, {context} ids | {shown}", flush=True)


def emulate_batch(texts: Texts, drafter: BatchDrafter) -> tuple[float, float]:
    """Tokens and rows per pass, where the texts play the target."""
    width = max(map(len, texts))
    rows = np.zeros((len(texts), width), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    ends = np.array([len(text) for text in texts])
    lengths = np.full(len(texts), PROMPT_TOKENS)
    passes = verified = tokens = 0
    while (lengths < ends).any():
        room = np.maximum(ends - lengths - 1, 0)
        running = lengths < ends
        proposed = drafter.propose(rows, lengths, np.where(running, room, 0))
        for place in np.flatnonzero(running).tolist():
            at, draft = int(lengths[place]), proposed[place]
            came = texts[place][at : at + len(draft) + 1]
            right = next((i for i, t in enumerate(draft) if t != came[i]), len(draft))
            passes, verified = passes + 1, verified + 1 + len(draft)
            tokens += right + 1
            lengths[place] += right + 1
    return tokens / passes, verified / passes


def emulate(texts: Texts, make: Callable[[], Drafter]) -> tuple[float, float]:
    """The same for a drafter of the MLX runtime."""
    statistics = Statistics()
    for ids in texts:
        for event in replay(ids, make(), prompt_tokens=PROMPT_TOKENS):
            statistics.observe(event)
    return statistics.tokens_per_round, statistics.rows_per_round


def print_savings(sets: dict[str, Texts], table: BackoffTable) -> None:
    """Print the second table."""

    def drafting(method: str, *, branches: bool = True) -> Callable[[], Drafter]:
        options = Drafting(method=method, dictionary=table, num_draft_tokens=MAX_TOKENS)
        return lambda: make_drafter(options, None, branches=branches)

    kinds: dict[str, Callable[[Texts], tuple[float, float]]] = {
        "vLLM, dictionary": lambda texts: emulate_batch(
            texts, BatchDrafter({"dictionary": table}, copies=False, max_tokens=MAX_TOKENS)
        ),
        "vLLM, copies": lambda texts: emulate_batch(texts, BatchDrafter({}, max_tokens=MAX_TOKENS)),
        "vLLM, both": lambda texts: emulate_batch(
            texts, BatchDrafter({"dictionary": table}, max_tokens=MAX_TOKENS)
        ),
        "MLX, dictionary": lambda texts: emulate(texts, drafting("dictionary")),
        "MLX, prompt-lookup": lambda texts: emulate(texts, drafting("prompt-lookup")),
        "MLX, hybrid as a chain": lambda texts: emulate(texts, drafting("hybrid", branches=False)),
        "MLX, hybrid": lambda texts: emulate(texts, drafting("hybrid")),
    }
    print(f"\ntokens, rows per pass | {' | '.join(sets)}")
    for name, run in kinds.items():
        cells = (run(texts) for texts in sets.values())
        print(f"{name} | {' | '.join(f'{t:.3f}, {r:.2f}' for t, r in cells)}", flush=True)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True)
def main(data: Path, target: str, steps: int) -> None:
    """Print both tables."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    table = open_dictionary(tokenizer, languages=["pl"])
    assert isinstance(table, BackoffTable)
    dev = data / "corpus" / "dev"
    speeches = read_texts(dev / "sejm.txt")
    print_costs(tokenizer.encode("\n".join(speeches[:100])), table, steps)
    sets = {
        name: [
            ids[:LONGEST]
            for ids in tokenizer.encode_batch(texts[:40])
            if len(ids) > 2 * PROMPT_TOKENS
        ]
        for name, texts in (
            ("dev/wiki", read_texts(dev / "wiki.jsonl")),
            ("dev/sejm", speeches),
        )
    }
    print_savings(sets, table)


if __name__ == "__main__":
    main()
