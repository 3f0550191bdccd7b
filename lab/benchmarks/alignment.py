"""The ladder of translations: accepted target tokens per round, with a bootstrap interval.

    python -m lab.benchmarks.alignment --draft-model MODEL --target NAME --text FILE [-k 2] \
        [--limit N]

Reference texts play the target's output and a draft model drafts, so the figures do not depend on
the hardware. The published translations come first, then `exact` without some of its parts, then
`exact` itself. `--only "intersection, tree"` grows a tree; `--only none` and `--only "none, tree"`
are for a draft model with the target's vocabulary. The interval is a 95 % bootstrap over the texts.
"rows" counts the rows that the target would verify in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from lab.baselines.translations import make_translation
from lab.benchmarks.paired_lines import bounds
from tokalign.api.assemble import load_models
from tokalign.api.choosing import pair_tables
from tokalign.cli.texts import read_texts
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.chat import Prompt
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.options import DEFAULT_ALTERNATIVES
from tokalign.runtime.rounds import Round
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.exact import MOST_BACK, ExactTranslation
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

PUBLISHED = ("naive", "context:5", "intersection")
PARTS = {
    "exact, no healing": (0, 0),
    "exact, chain only": (MOST_BACK, 0),
    "exact": (MOST_BACK, DEFAULT_ALTERNATIVES),
}
"""The most draft tokens taken back in each row, and the alternatives of a tree; 0 for a chain."""

TREE = ", tree"
"""Ends the name of a published translation with a tree."""

HEADER = """\
| translation | accepted/round | 95 % | acceptance | rows | empty | passes | host p50 ms | p99 |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Texts that play the target's output, and a draft model that proposes how they continue.

    texts: in target ids. given: how many ids of each are the prompt. steps: draft passes in a
    round (K).
    """

    session: DraftModelSession
    pair: Pair
    alignment: Alignment
    texts: Sequence[Sequence[TargetId]]
    given: int
    steps: int

    def row(self, name: str) -> str:
        """Replay every text with one translation."""
        statistics = Statistics()
        rounds, accepted = [0] * len(self.texts), [0] * len(self.texts)
        default = None, DEFAULT_ALTERNATIVES if name.endswith(TREE) else 0
        most_back, alternatives = PARTS.get(name, default)
        texts = track(self.texts, name, console=Console(stderr=True), transient=True)
        for number, ids in enumerate(texts):
            drafter = NeuralDrafter(
                self.session,
                self.translation(name.removesuffix(TREE), ids, most_back),
                num_draft_tokens=self.steps,
                alternatives=alternatives,
            )
            for event in replay(ids, drafter, prompt_tokens=self.given):
                statistics.observe(event)
                if isinstance(event, Round):
                    rounds[number] += 1
                    accepted[number] += event.accepted
        low, high = bounds(accepted, rounds)
        return (
            f"| {name} | {statistics.accepted_per_round:.3f} | {low:.3f}–{high:.3f} "
            f"| {statistics.draft_acceptance_rate:.3f} | {statistics.rows_per_round:.2f} "
            f"| {statistics.empty_rounds / statistics.rounds:.1%} "
            f"| {statistics.draft_passes_per_round:.2f} "
            f"| {statistics.host_ms_per_round['p50']:.2f} "
            f"| {statistics.host_ms_per_round['p99']:.2f} |"
        )

    def translation(self, name: str, ids: Sequence[TargetId], most_back: int | None) -> Translation:
        """A translation for one text; `exact` if `most_back` is given."""
        prompt = Prompt(target=ids[: self.given])
        if most_back is None:
            return make_translation(name, self.pair, prompt, lambda: self.alignment)
        return ExactTranslation(
            self.pair, prompt.draft_text(self.pair), self.alignment, most_back=most_back
        )


@click.command()
@click.option("--draft-model", required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--field", default="text", show_default=True)
@click.option("-k", "--num-draft-tokens", "steps", default=2, show_default=True)
@click.option("--prompt-tokens", "given", default=12, show_default=True)
@click.option("--tokens", default=200, show_default=True, help="Tokens of each text at most.")
@click.option("--limit", type=int, help="Texts.")
@click.option("--only", multiple=True, help="Rows to run; all by default.")
def main(
    *,
    draft_model: str,
    target: str,
    text: Path,
    field: str,
    steps: int,
    given: int,
    tokens: int,
    limit: int | None,
    only: tuple[str, ...],
) -> None:
    """Print one row per translation."""
    model: Any
    [model] = load_models([draft_model], dtype="float32")
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    encoded = tokenizer.encode_batch(read_texts(text, field=field, limit=limit))
    texts = [ids[:tokens] for ids in encoded if len(ids) > given]
    if not texts:
        raise click.UsageError(f"no text of {text} goes on after a prompt of {given} tokens")
    ladder = Ladder(
        session=DraftModelSession(model.model),
        pair=Pair(tokenizer, model.tokenizer),
        alignment=pair_tables(tokenizer, model.tokenizer, model_folder=model.folder)(),
        texts=texts,
        given=given,
        steps=steps,
    )
    print(f"{text.name}, {len(texts)} texts, K = {steps}\n\n{HEADER}")
    for name in only or (*PUBLISHED, *PARTS):
        print(ladder.row(name), flush=True)


if __name__ == "__main__":
    main()
