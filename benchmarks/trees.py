"""Trees of all sources: tokens per pass by drafted rows, and host time.

    python benchmarks/trees.py --target MODEL --prompts FILE [--rows 4,7,15,31] [--limit N]
    python benchmarks/trees.py --target MODEL --text FILE [--field NAME] [...]

With prompts the target samples its own output (T = 0.7); with a text it reads that text, which
plays its output. The text is fixed first, as drafting never changes it. The loop, the verifier, the
store and the drafters are those of tokalign, and `recorded_target.py` plays the target's session.
`kept`: one logit store for all requests; `empty`: a new one for each; `dictionary`: its chain.
What is learned about sources is kept within a row of the table.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import click
from recorded_target import Llama, Recorded, RecordedTarget

from tokalign.assemble import keep_loaded
from tokalign.cli.texts import read_texts
from tokalign.runtime.context import Context
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.draft.mixing import Mixing
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True)
class Text:
    """A text that the target emits: its ids, and how many of them are the prompt."""

    ids: Sequence[TargetId]
    given: int
    known: dict[Any, Any]


def texts_of(
    model: Llama,
    tokenizer: Tokenizer[TargetId],
    prompts: Path | None,
    text: Path | None,
    field: str,
    limit: int,
    tokens: int,
    temperature: float,
) -> list[Text]:
    """What is decoded."""
    if prompts is not None:
        given = [tokenizer.encode(one) for one in read_texts(prompts, field=field, limit=limit)]
        bos = tokenizer.vocabulary.roles.bos
        assert bos is not None
        given = [[bos, *ids] for ids in given]
        drawn: list[list[int]] = []
        for begin in range(0, len(given), 5):
            drawn += model.sample(given[begin : begin + 5], tokens, temperature, begin)
        return [
            Text(cast("list[TargetId]", ids), len(own), {})
            for own, ids in zip(given, drawn, strict=True)
        ]
    assert text is not None, "give --prompts or --text"
    found = [
        tokenizer.encode(one)[: tokens + 8] for one in read_texts(text, field=field, limit=limit)
    ]
    return [Text(ids, 8, {}) for ids in found if len(ids) > 20]


def measure(model: Llama, texts: Sequence[Text], drafting: Drafting, kept: bool) -> str:
    """One row of the table."""
    statistics, store, mixing = Statistics(), LogitStore(), Mixing()
    began = perf_counter()
    for text in texts:
        own = replace(drafting, logits=store if kept else LogitStore(), mixing=mixing)
        session = RecordedTarget(model, text.ids, text.known)
        verifier = TargetVerifier(session, Recorded(text.ids), own.logits)
        limits = Limits(max_tokens=len(text.ids) - text.given - 1)
        drafter = make_drafter(own, None)
        for event in decode(Context(text.ids[: text.given]), drafter, verifier, limits=limits):
            statistics.observe(event)
    host = statistics.host_ms_per_round
    return (
        f"{statistics.tokens_per_round:.3f} | {statistics.rows_per_round:.1f} | "
        f"{host['p50']:.2f} | {host['p99']:.2f} | {statistics.generation_tokens} | "
        f"{perf_counter() - began:.0f} s"
    )


@click.command()
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True))
@click.option("--text", type=click.Path(path_type=Path, exists=True))
@click.option("--field", default="text", show_default=True)
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True))
@click.option("--rows", default="4,7,15,31", show_default=True)
@click.option("--limit", default=30, show_default=True)
@click.option("--tokens", default=250, show_default=True)
@click.option("--temp", default=0.7, show_default=True)
@click.option("--only", default="dictionary,kept,empty", show_default=True)
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Remembered rows, for repeated runs."
)
def main(
    *,
    target: Path,
    prompts: Path | None,
    text: Path | None,
    field: str,
    dictionary: Path | None,
    rows: str,
    limit: int,
    tokens: int,
    temp: float,
    only: str,
    cache: Path | None,
) -> None:
    """Print one row for each way to draft and number of rows."""
    tokenizer: Tokenizer[TargetId] = Tokenizer.from_file(target)
    model = Llama(target)
    if cache is not None and cache.exists():
        texts = pickle.loads(cache.read_bytes())
    else:
        texts = texts_of(model, tokenizer, prompts, text, field, limit, tokens, temp)
    if cache is not None:
        cache.write_bytes(pickle.dumps(texts))
    keep_loaded()
    base = Drafting(
        dictionary=open_dictionary(tokenizer, files=[dictionary] if dictionary else []),
        costs=lambda: FREE_ROWS,
    )
    print("| | rows | tokens/pass | rows/pass | host ms p50 | p99 | tokens | took |")
    for name in only.split(","):
        for count in map(int, rows.split(",")):
            if name == "dictionary":
                drafting = replace(base, method="dictionary", num_draft_tokens=count)
            else:
                drafting = replace(base, method="hybrid", draft_rows=count)
            print(
                f"| {name} | {count} | {measure(model, texts[:limit], drafting, name == 'kept')} |",
                flush=True,
            )
            if cache is not None:
                cache.write_bytes(pickle.dumps(texts))


if __name__ == "__main__":
    main()
