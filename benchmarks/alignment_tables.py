"""What the tables of a pair cost to build, to open and to use.

    python benchmarks/alignment_tables.py [--pair DRAFT TARGET ...] [--text FILE] [--top 10]

Each pair is built in a process of its own, with FILE as the corpus. Then its table is asked whether
draft tokens drawn at random may follow at boundaries of that text, each question for the first time
and again. Below the table, the merge sites are listed that the tokens of the text most often have.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click
import numpy as np

from tokalign.bpe.absorption import Absorption
from tokalign.bpe.incremental import IncrementalEncoder
from tokalign.build.corpus import Corpus
from tokalign.build.counting.workers import peak_memory
from tokalign.build.pipeline import build_pair
from tokalign.names.registry import resolve_tokenizer
from tokalign.tables.alignment import Alignment, MergeSites
from tokalign.tables.bundle import read_bundle, write_bundle
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

PAIRS = (
    ("llama3.2", "bielik"),
    ("qwen2.5", "bielik"),
    ("bielik", "llama3.2"),
    ("bielik", "qwen2.5"),
)
QUESTIONS = 20_000
HEADER = """\
| draft → target | bytes | sites | build s | CPU s | MB | open ms | first µs | p99 | again | p99 |
|---|---|---|---|---|---|---|---|---|---|---|"""


@click.command()
@click.option("--pair", "pairs", type=(str, str), multiple=True, help="DRAFT TARGET.")
@click.option("--text", type=click.Path(path_type=Path, exists=True), default="corpora/pl-mini.txt")
@click.option("--top", default=10, show_default=True, help="Merge sites shown per target.")
def main(*, pairs: tuple[tuple[str, str], ...], text: Path, top: int) -> None:
    """Print a row per pair, and the most frequent merge sites per target."""
    print(HEADER, flush=True)
    frequent = {}
    for draft, target in pairs or PAIRS:
        with ProcessPoolExecutor(max_workers=1) as process:
            row, frequent[target] = process.submit(measure, draft, target, text, top).result()
        print(row, flush=True)
    for target, sites in frequent.items():
        print(f"\n{target}: " + ", ".join(f"`{site}` {count}" for site, count in sites))


def measure(draft: str, target: str, text: Path, top: int) -> tuple[str, list[tuple[str, int]]]:
    """One row of the table, and the target's most frequent sites."""
    ours: Tokenizer[DraftId] = resolve_tokenizer(draft).tokenizer
    theirs: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    wall, cpu = time.perf_counter(), time.process_time()
    bundle = build_pair(ours, theirs, Corpus([text]))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_memory()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pair.alignment.tok"
        write_bundle(path, bundle)
        started = time.perf_counter()
        alignment = Alignment.from_bundle(read_bundle(path), draft=ours.vocabulary.tokens)
        opened = time.perf_counter() - started
        sites, size = alignment.merge_sites, path.stat().st_size
        assert sites is not None
        lines = text.read_text("utf-8").splitlines()
        first, again = ask(theirs, sites, lines, ours.bpe.order.spelled)
        frequent = count_sites(theirs, sites, lines).most_common(top)
    row = (
        f"| {draft} → {target} | {size:,} | {len(sites):,} | {wall:.1f} | {cpu:.1f} "
        f"| {peak / 1e6:,.0f} | {opened * 1e3:.1f} | {first[0]:.1f} | {first[1]:.0f} "
        f"| {again[0]:.1f} | {again[1]:.0f} |"
    )
    return row, frequent


def ask(
    target: Tokenizer[TargetId], sites: MergeSites, lines: list[str], tokens: list[bytes]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """p50 and p99 of one question in µs, asked for the first time and asked again."""
    draw, absorption = Random(0), Absorption(target.bpe, sites.absorbs)
    boundaries = boundaries_of(target, lines)
    questions = [(*draw.choice(boundaries), draw.choice(tokens)) for _ in range(QUESTIONS)]
    return clock(absorption.absorbs, questions), clock(absorption.absorbs, questions)


def clock(
    absorbs: Callable[[bytes, TargetId, bytes], bool],
    questions: list[tuple[bytes, TargetId, bytes]],
) -> tuple[float, float]:
    """p50 and p99 of the calls, in µs."""
    taken = []
    for question in questions:
        started = time.thread_time_ns()
        absorbs(*question)
        taken.append(time.thread_time_ns() - started)
    p50, p99 = np.quantile(taken, [0.5, 0.99]) / 1e3
    return float(p50), float(p99)


def boundaries_of(target: Tokenizer[TargetId], lines: list[str]) -> list[tuple[bytes, TargetId]]:
    """The text since the last settled piece and the last token, after every token."""
    found, spelled = [], target.vocabulary.tokens
    for line in lines:
        encoder = IncrementalEncoder(target.bpe)
        for token in target.encode(line):
            encoder.push(spelled[token])
            left = b"".join([spelled[i] for i in encoder.ids[encoder.settled :]])
            found.append((left, token))
    return found


def count_sites(target: Tokenizer[TargetId], sites: MergeSites, lines: list[str]) -> Counter[str]:
    """How often a token with each stored site occurs in the text; by token and bytes."""
    tokens = Counter(i for ids in target.encode_batch(lines) for i in ids)
    found: Counter[str] = Counter()
    for token, count in tokens.items():
        name = target.vocabulary.tokens[token].decode("utf-8", "replace")
        for site in sites.after(token):
            found[f"{name}|{site.decode('utf-8', 'replace')}"] = count
    return found


if __name__ == "__main__":
    main()
