"""What the proposer for vLLM costs and saves.

    python -m lab.benchmarks.vllm_proposer --data DATA [--steps 40]

DATA is the folder of the shared data; the target is Bielik 11B and the dictionary the shipped one.
The first table is the host time of a call of `BatchDrafter.propose` per request, the best and the
median of all steps. Contexts of so many ids are cut from the Sejm speeches in corpus/dev. The last
column is the dictionary drafter of the MLX runtime, called for one request after the other.
The second table has the texts of corpus/dev play the target: tokens per pass (rows are free) and
verified rows per pass. All texts of a set are one batch, and the first 64 ids of each its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import click
import numpy as np

from tokalign.cli.bench_options import read_texts
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.lookup import DictionaryDrafter
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.rounds import Context, Drafter
from tokalign.runtime.statistics import Statistics
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.vllm import BatchDrafter, Rows

BATCHES = (1, 8, 64)
CONTEXTS = (256, 2048)
MAX_TOKENS, PROMPT_TOKENS, LONGEST = 8, 64, 300

Texts = list[list[TargetId]]


def timed(call: Callable[[int], object], steps: int, requests: int) -> str:
    """The best and the median time of a step, per request. call: takes the number of the step."""
    times = []
    for step in range(steps):
        began = time.perf_counter()
        call(step)
        times.append((time.perf_counter() - began) / requests * 1e6)
    return f"{min(times):.1f}, {median(times):.1f}"


def print_costs(ids: Sequence[TargetId], table: BackoffTable, steps: int) -> None:
    """Print the first table."""
    names = ("dictionary", "copies", "both", "two dictionaries and copies")
    print(f"µs per request | {' | '.join(names)} | dictionary, one request at a time")
    for context in CONTEXTS:
        for batch in BATCHES:
            starts = np.linspace(0, len(ids) - context - 1, batch).astype(int).tolist()
            texts = [list(ids[start : start + context]) for start in starts]
            drafters = (
                BatchDrafter({"dictionary": table}, copies=False, max_tokens=MAX_TOKENS),
                BatchDrafter({}, max_tokens=MAX_TOKENS),
                BatchDrafter({"dictionary": table}, max_tokens=MAX_TOKENS),
                BatchDrafter({"dictionary:a": table, "dictionary:b": table}, max_tokens=MAX_TOKENS),
            )
            cells = [
                timed(partial(batch_step, one, np.array(texts, np.int32), steps), steps, batch)
                for one in drafters
            ]
            alone = partial(single_steps, DictionaryDrafter(table), texts, steps)
            cells.append(timed(alone, steps, batch))
            print(f"batch {batch}, {context} ids | {' | '.join(cells)}", flush=True)


def batch_step(drafter: BatchDrafter, rows: Rows, steps: int, step: int) -> object:
    """Propose for all rows at once. With every step each text has two ids more."""
    count, context = rows.shape
    lengths = np.full(count, context - 2 * (steps - step))
    return drafter.propose(rows, lengths, np.full(count, MAX_TOKENS))


def single_steps(drafter: Drafter, texts: Texts, steps: int, step: int) -> object:
    """Propose for one text after the other."""
    cut = 2 * (steps - step)
    return [drafter.propose(Context(text[-cut - 8 : -cut]), MAX_TOKENS) for text in texts]


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

    def batch(
        tables: dict[str, BackoffTable], *, copies: bool = True, p_min: float | None = None
    ) -> Callable[[Texts], tuple[float, float]]:
        drafter = BatchDrafter(tables, copies=copies, max_tokens=MAX_TOKENS, p_min=p_min)
        return lambda texts: emulate_batch(texts, drafter)

    kinds: dict[str, Callable[[Texts], tuple[float, float]]] = {
        "vLLM, dictionary": batch({"dictionary": table}, copies=False),
        "vLLM, copies": batch({}),
        "vLLM, both": batch({"dictionary": table}),
        "vLLM, both, p_min 0.15": batch({"dictionary": table}, p_min=0.15),
        "MLX, dictionary": lambda texts: emulate(texts, drafting("dictionary")),
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
@click.option("--steps", type=click.IntRange(1, 100), default=40, show_default=True)
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
