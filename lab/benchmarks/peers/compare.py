"""Other projects and tokalign, side by side: same weights, same prompts, one run.

    pip install -e '.[mlx,peers]'
    python -m lab.benchmarks.peers.compare --target MODEL --draft MODEL \
        [--draft MODEL] --prompts FILE

Greedy decoding in float32. For every prompt all contenders run, one after another, in an order that
rotates. Tokens per pass is what a draft is for; seconds are of this machine and of two different
libraries (PyTorch and MLX), so they say little between them. `equal` counts the prompts whose
output is that of plain decoding in the same library. No token stops an output, so that all have the
same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

from lab.benchmarks.peers.in_mlx import MlxLm, Tokalign
from lab.benchmarks.peers.in_transformers import Counted, Transformers
from lab.benchmarks.peers.outcome import Asked, Contender, Run
from tokalign.assemble import load_decoder
from tokalign.cli.bench_options import read_texts
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.methods import DraftingOptions
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


def contenders(target: Path, drafts: Sequence[Path], tokens: int, k: int) -> list[Contender]:
    """Every way to decode that is compared."""
    found: list[Contender] = []
    for draft in drafts:
        theirs = Transformers(Counted(target), Counted(draft), tokens=tokens, num_draft_tokens=k)
        if not found:
            plain = partial(theirs.generate, assisted=False)
            found.append(Contender("Transformers, plain", "Transformers, plain", plain))
        assisted = partial(theirs.generate, assisted=True)
        name = f"Transformers, UAG, {draft.name}"
        found.append(Contender(name, "Transformers, plain", assisted))
    own = MlxLm(target, tokens=tokens, num_draft_tokens=k)
    plain_name = "mlx-lm, plain"
    found.append(Contender(plain_name, plain_name, partial(own.generate, drafted=False)))
    name = "mlx-lm, the target in 4 bits drafts"
    found.append(Contender(name, plain_name, partial(own.generate, drafted=True)))
    for draft in drafts:
        exact = DraftingOptions(method="draft", translation="exact", num_draft_tokens=k)
        for kind, options in (("chain", replace(exact, alternatives=0)), ("tree", exact)):
            decoder = load_decoder(str(target), str(draft), options, dtype="float32")
            ours = Tokalign(decoder, tokens=tokens)
            name = f"tokalign, exact, {kind}, {draft.name}"
            found.append(Contender(name, plain_name, ours.generate))
    for method in ("copy", "hybrid"):
        options = DraftingOptions(method=method)
        decoder = load_decoder(str(target), None, options, dtype="float32")
        ours = Tokalign(decoder, tokens=tokens)
        found.append(Contender(f"tokalign, {method}", plain_name, ours.generate))
    return found


@dataclass
class Row:
    """What one contender did on all prompts."""

    runs: list[Run] = field(default_factory=list)
    equal: int = 0


@click.command()
@click.option("--target", type=_FOLDER, required=True)
@click.option("--draft", "drafts", type=_FOLDER, multiple=True, required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--limit", default=12, show_default=True)
@click.option("--tokens", default=96, show_default=True)
@click.option("--num-draft-tokens", default=2, show_default=True)
@click.option("--threads", default=torch.get_num_threads(), show_default=True, help="PyTorch's.")
def main(
    target: Path,
    drafts: tuple[Path, ...],
    prompts: Path,
    limit: int,
    tokens: int,
    num_draft_tokens: int,
    threads: int,
) -> None:
    """Print one row for each contender."""
    torch.set_num_threads(threads)
    tokenizer: Tokenizer[TargetId] = read_tokenizer(target)
    ways = contenders(target, drafts, tokens, num_draft_tokens)
    rows = {way.name: Row() for way in ways}
    for turn, text in enumerate(read_texts(prompts, limit=limit)):
        asked = Asked(text, [int(one) for one in encode_prompt(tokenizer, text)])
        turned = turn % len(ways)
        found = {way.name: way.run(asked) for way in ways[turned:] + ways[:turned]}
        for way in ways:
            run = found[way.name]
            rows[way.name].runs.append(run)
            rows[way.name].equal += run.ids == found[way.plain].ids
    table = Table("", "tokens per pass", "draft passes per pass", "tokens/s (median)", "equal")
    for name, row in rows.items():
        passes = sum(run.passes for run in row.runs)
        table.add_row(
            name,
            f"{sum(len(run.ids) for run in row.runs) / passes:.3f}",
            f"{sum(run.draft_passes for run in row.runs) / passes:.2f}",
            f"{median(len(run.ids) / run.seconds for run in row.runs):.1f}",
            f"{row.equal} of {len(row.runs)}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
