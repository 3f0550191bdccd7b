"""Tokens per pass under a JSON schema: masked plainly, drafted without the grammar, and with it.

    python -m lab.benchmarks.structured [--target MODEL] [--draft MODEL] [--temp T] [--limit N]

The thirty requests of `lab/prompts/structured.jsonl` are decoded in every way, with new drafters
for each, and every way has to emit the same ids. Draft lengths follow the costs that are assumed
before any are measured (5 % of a pass for a row), so the counts do not depend on this machine. The
host's times do: those outside the passes for a row of the target, and those of a row's mask, which
is made while its pass runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
from jsonschema import validate
from rich.console import Console
from rich.table import Table

from tokalign.build.alignment.alignment_bundle import align
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.draft.hybrid import Hybrid
from tokalign.runtime.draft_length.planner import Planner
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.grammar import Constraint, Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.rounds import Drafter, Verifier

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = ROOT / "lab" / "prompts" / "structured.jsonl"
_PATH = click.Path(path_type=Path, exists=True)


class Unaware(Decoder):
    """A decoder whose drafters do not know the grammar."""

    def _collaborators(self, *given: Any) -> tuple[Drafter, Verifier]:
        drafter, verifier = super()._collaborators(*given)
        hybrid = drafter._free if isinstance(drafter, Planner) else drafter
        assert isinstance(hybrid, Hybrid)
        hybrid._constraint = None
        return drafter, verifier


@dataclass
class Counts:
    """What a way to decode took, over all requests.

    host, masks: milliseconds for a row, of every round. sources: accepted ids by who drafted them.
    """

    tokens: int = 0
    passes: int = 0
    rows: int = 0
    host: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, generation: Generation) -> None:
        """Count a generation that has ended."""
        for one in generation.rounds:
            self.tokens += len(one.emitted)
            self.passes += 1
            self.rows += one.rows
            self.host.append(1e3 * (one.seconds - one.model_seconds) / max(1, one.rows))
            self.sources.update(one.sources)


def requests(limit: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Language, prompt and schema of the first `limit` requests of each language."""
    seen: Counter[str] = Counter()
    for line in REQUESTS.read_text("utf-8").splitlines():
        one = json.loads(line)
        seen[one["language"]] += 1
        if seen[one["language"]] <= limit:
            yield one["language"], one["prompt"], one["schema"]


def watch_masks(counts: Counts) -> None:
    """Note how long each row's mask takes."""
    rows = _ROWS

    def timed(constraint: Constraint, ids: Any, tree: Any, width: int) -> Any:
        began = perf_counter()
        made = rows(constraint, ids, tree, width)
        counts.masks.append(1e3 * (perf_counter() - began) / (1 + len(tree)))
        return made

    Constraint.rows = timed  # type: ignore[assignment, method-assign]


_ROWS = Constraint.rows


@click.command()
@click.option("--target", type=_PATH, default=ROOT / "demo" / "target")
@click.option("--draft", type=_PATH, help="A draft model, too.")
@click.option("--temp", type=float, default=0.0, show_default=True)
@click.option("--limit", type=int, default=15, show_default=True, help="Requests of a language.")
@click.option("--tokens", type=int, default=160, show_default=True, help="Of an output, at most.")
def benchmark(target: Path, draft: Path | None, temp: float, limit: int, tokens: int) -> None:
    """One row per language and way to decode."""
    ours: LanguageModel[Any] = LanguageModel.from_folder(target)
    theirs: LanguageModel[Any] | None = None if draft is None else LanguageModel.from_folder(draft)
    tables = cache(
        lambda: align(theirs.tokenizer.vocabulary, ours.tokenizer.vocabulary) if theirs else None
    )
    hybrid = Drafting(method="hybrid", translation="exact", alignment=tables)  # type: ignore[arg-type]
    ways: dict[str, tuple[type[Decoder], Drafting]] = {
        "plain": (Decoder, Drafting()),
        "drafts without the grammar": (Unaware, hybrid),
        "drafts with it": (Decoder, hybrid),
    }
    counts = {(language, way): Counts() for language in ("en", "pl") for way in ways}
    cut = 0
    for number, (language, prompt, schema) in enumerate(requests(limit)):
        grammar, outputs = Grammar.json_schema(schema), []
        for way, (kind, drafting) in ways.items():
            decoder = kind(
                target=ours,
                draft=theirs if drafting.method == "hybrid" else None,
                drafting=drafting,
                sampler=Sampling(temperature=temp, seed=number),
                grammar=grammar,
            )
            watch_masks(counts[language, way])
            asked = f"{prompt} JSON:"
            generation = Generation(decoder, decoder.prompt(asked), max_tokens=tokens)
            text = "".join(part for part, _ in generation.texts())
            counts[language, way].add(generation)
            outputs.append(list(generation.context.emitted))
            if generation.summary()["finish_reason"] == "stop":
                validate(json.loads(text), schema)
            elif way == "plain":
                cut += 1
        assert all(output == outputs[0] for output in outputs), f"request {number} differs"
    table = Table("", "", "tokens", "tokens/pass", "rows/pass", "forced", "host", "mask")
    for (language, way), one in counts.items():
        table.add_row(
            language,
            way,
            str(one.tokens),
            f"{one.tokens / one.passes:.3f}",
            f"{one.rows / one.passes:.2f}",
            f"{one.sources['grammar'] / one.tokens:.0%}",
            f"{median(one.host):.3f} ms",
            f"{median(one.masks):.3f} ms",
        )
    console = Console(width=110)
    console.print(table)
    console.print(f"{cut} outputs were cut; all others match; no id differs. Times: p50 for a row.")


if __name__ == "__main__":
    benchmark()
