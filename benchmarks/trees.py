"""Trees of all sources in real decoding: tokens per pass by drafted rows, and host time.

    python benchmarks/trees.py --target MODEL --prompts FILE [--rows 4,7,15,31] [--limit N]
    python benchmarks/trees.py --target MODEL --text FILE --field NAME [...]

With prompts the target samples its own output (T = 0.7, `match`, seed 0). With a text the
target reads a reference text, which plays its output, and its own logits go to the store.
`kept`: one logit store for all requests; `empty`: a new one for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from tokalign.assemble import keep_loaded
from tokalign.cli.texts import read_texts
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import Decoder, LanguageModel, Prompt
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.limits import Limits
from tokalign.runtime.mlx.sampling import Sampling, logprobs_of
from tokalign.runtime.proposal import Array
from tokalign.runtime.statistics import Statistics
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId


@dataclass(frozen=True)
class Reference:
    """A sampler that chooses what a reference text goes on with."""

    ids: Sequence[TargetId]
    needs_history = False
    needs_position = True
    draft_sampler = None

    def choose(
        self,
        logits: Array,
        *,
        position: int,
        ids: Sequence[TargetId] = (),
        distributions: Sequence[Array | None] = (),
        depths: Sequence[int] | None = None,
    ) -> tuple[Array, Array]:
        """See `interfaces.Sampler`."""
        import mlx.core as mx

        logprobs = logprobs_of(logits, (), position=position, ids=ids)
        at = [position + d for d in (depths or range(logits.shape[0]))]
        chosen = [self.ids[i] if i < len(self.ids) else 0 for i in at]
        return mx.array(chosen), logprobs


@dataclass(frozen=True)
class Request:
    """A prompt, the most ids to emit, and how the target chooses."""

    prompt: Sequence[TargetId]
    tokens: int
    sampler: Any


def requests_of(
    model: LanguageModel[TargetId], prompts: Path | None, text: Path | None, field: str, limit: int,
    tokens: int, temperature: float,
) -> list[Request]:
    """What is decoded."""
    encode = model.tokenizer.encode
    if prompts is not None:
        sampler = Sampling(temperature=temperature)
        decoder = Decoder(target=model, drafting=Drafting(), sampler=sampler)
        lines = read_texts(prompts, field=field, limit=limit)
        return [Request(decoder.prompt(line).target, tokens, sampler) for line in lines]
    found = [encode(one)[: tokens + 8] for one in read_texts(text, field=field, limit=limit)]
    return [Request(ids[:8], len(ids) - 9, Reference(ids)) for ids in found if len(ids) > 20]


def measure(
    model: LanguageModel[TargetId], requests: Sequence[Request], drafting: Drafting, kept: bool
) -> str:
    """One row of the table."""
    statistics, store = Statistics(), LogitStore()
    limits = Limits(max_tokens=0, stop_ids=model.stop_ids)
    decoder = Decoder(target=model, drafting=drafting, sampler=Sampling())
    session = decoder.open_target()
    began = perf_counter()
    for request in requests:
        own = replace(drafting, logits=store if kept else LogitStore())
        decoder = replace(decoder, sampler=request.sampler, drafting=own)
        bounds = replace(limits, max_tokens=request.tokens)
        if isinstance(request.sampler, Reference):
            bounds = replace(bounds, stop_ids=frozenset())
        _, events = decoder.run(Prompt(target=request.prompt), bounds, target=session)
        for event in events:
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
def main(
    *, target: Path, prompts: Path | None, text: Path | None, field: str, dictionary: Path | None,
    rows: str, limit: int, tokens: int, temp: float, only: str,
) -> None:
    """Print one row for each way to draft and number of rows."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    requests = requests_of(model, prompts, text, field, limit, tokens, temp)
    keep_loaded()
    base = Drafting(
        dictionary=open_dictionary(model.tokenizer, file=dictionary), costs=lambda: FREE_ROWS
    )
    print("| | rows | tokens/pass | rows/pass | host ms p50 | p99 | tokens | took |")
    for name in only.split(","):
        for count in map(int, rows.split(",")):
            if name == "dictionary":
                drafting = replace(base, method="dictionary", num_draft_tokens=count)
            else:
                drafting = replace(base, method="hybrid", draft_rows=count)
            print(f"| {name} | {count} | {measure(model, requests, drafting, name == 'kept')} |", flush=True)


if __name__ == "__main__":
    main()
