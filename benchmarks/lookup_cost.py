"""What drafting without a model costs the host: the functions that a round calls, in microseconds.

    python benchmarks/lookup_cost.py --text FILE [--dictionary FILE] [--tokens N]

The texts are decoded in replay with the hybrid, once for each function, whose calls are timed in
place. A time includes that of the clock, about 0.1 µs. Memory is that of the automaton alone.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.hybrid import Hybrid, Source
from tokalign.runtime.draft.lookup import DictionarySource, dictionary_sources
from tokalign.runtime.draft.mixing import Mixer
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.draft.trust import Trust
from tokalign.runtime.drafting import ASSUMED_COSTS
from tokalign.runtime.rounds import Round
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Given = ParamSpec("Given")
Found = TypeVar("Found")

TIMED: tuple[tuple[type, str], ...] = (
    (SuffixAutomaton, "append"),
    (SuffixAutomaton, "longest_repeat"),
    (ContextCopy, "follow"),
    (ContextCopy, "expect"),
    (DictionarySource, "expect"),
    (Mixer, "candidates"),
    (Mixer, "learn"),
    (Hybrid, "propose"),
    (Trust, "calibrated"),
    (Trust, "learn"),
)


def timed(call: Callable[Given, Found], times: list[int]) -> Callable[Given, Found]:
    """The same function, which also appends the nanoseconds of each call to `times`."""

    def run(*arguments: Given.args, **named: Given.kwargs) -> Found:
        started = time.perf_counter_ns()
        found = call(*arguments, **named)
        times.append(time.perf_counter_ns() - started)
        return found

    return run


@click.command()
@click.option("--target", default="bielik", show_default=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--field", "text_field", default="text", show_default=True)
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True))
@click.option("--tokens", default=4000, show_default=True, help="All texts as one, up to here.")
def main(target: str, text: Path, text_field: str, dictionary: Path | None, tokens: int) -> None:
    """Print one row per function."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    texts = tokenizer.encode_batch(read_texts(text, field=text_field))
    ids = [token for one in texts for token in one][:tokens]
    table = open_dictionary(tokenizer, files=[dictionary] if dictionary else [])
    print("| function | calls | p50 µs | p99 µs | calls per round |\n|---|---|---|---|---|")
    for owner, name in TIMED:
        # One at a time, so that no clock is inside another.
        times: list[int] = []
        original = getattr(owner, name)
        setattr(owner, name, timed(original, times))
        sources: list[Source] = [ContextCopy()]
        if table is not None:
            sources += dictionary_sources(table)
        hybrid = Hybrid(sources, costs=lambda: ASSUMED_COSTS, max_tokens=16)
        rounds = sum(isinstance(event, Round) for event in replay(ids, hybrid))
        setattr(owner, name, original)
        times.sort()
        p50, p99 = times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3
        each = len(times) / rounds
        print(f"| {owner.__name__}.{name} | {len(times)} | {p50:.1f} | {p99:.1f} | {each:.1f} |")
    tracemalloc.start()
    kept = SuffixAutomaton(ids)
    print(
        f"\nsuffix automaton: {tracemalloc.get_traced_memory()[0] / len(kept):.0f} bytes per token"
    )


if __name__ == "__main__":
    main()
