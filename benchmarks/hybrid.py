"""The hybrid against every fixed order of its sources, in replay.

    python benchmarks/hybrid.py --data FOLDER [--draft-model MODEL] [--limit N] [--tokens N]

FOLDER has the dev texts (`wiki.jsonl`, `sejm.txt`, `questions.jsonl`). A draft model's proposals
are recorded once at every position of a text and then played to every method, so that all methods
see the same answers. There are two prices. Under the first, verified rows and draft passes cost
nothing; it gives tokens per round, as emulators count. Under the second, a row costs 5 % and a
draft pass 10 % of a plain pass; it gives tokens per time of a plain pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from tokalign.build.alignment.alignment_bundle import align
from tokalign.cli.texts import read_texts
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.project import FirstOf
from tokalign.evaluate.replay import replay
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import LanguageModel, Prompt, make_translation
from tokalign.runtime.draft.cost_aware import Experience, ModelDrafter
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.drafting import ASSUMED_COSTS, Drafting, make_drafter
from tokalign.runtime.interfaces import Drafter
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.proposal import Proposal
from tokalign.runtime.rounds import Round
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.translation.base import Pair
from tokalign.tables.opening import open_alignment, open_dictionary
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

SETS = {
    "wiki": ("wiki.jsonl", "text"),
    "sejm": ("sejm.txt", ""),
    "questions": ("questions.jsonl", "question"),
}
PRICES = {"free": FREE_ROWS, "priced": ASSUMED_COSTS}
PROMPT_TOKENS = 4


@dataclass(frozen=True)
class Text:
    """Ids, and the draft model's answers by the number of ids before them; none without a model."""

    ids: Sequence[TargetId]
    answers: dict[int, Proposal] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded(ModelDrafter):
    """Proposes what was recorded, chains only."""

    answers: dict[int, Proposal]

    def propose(self, context: Context, limit: int) -> Proposal:
        """See `interfaces.Drafter`."""
        answer = self.answers[len(context.ids)]
        return replace(answer, tree=answer.tree.first_chain.head(limit))

    def answer(self, context: Context, limit: int) -> Proposal:
        """See `cost_aware.Answering`."""
        return self.propose(context, limit)


def record(ids: Sequence[TargetId], drafter: Drafter, limit: int = 16) -> Text:
    """Ask a drafter at every position of a text."""
    context, answers = Context(ids[:PROMPT_TOKENS]), {}
    for end in range(PROMPT_TOKENS, len(ids)):
        answers[end] = drafter.propose(context, limit)
        context.extend([ids[end]])
    return Text(ids, answers)


def measure(
    texts: Iterable[Text], drafting: Drafting, order: Sequence[str], costs: Costs
) -> tuple[float, float]:
    """Tokens per round, and per time in plain passes; of all texts together.

    order: of methods, the first of which that has a proposal makes it.
    """
    statistics, time = Statistics(), 0.0
    drafting = replace(drafting, costs=lambda: costs, experience=Experience())
    for text in texts:
        model = Recorded(text.answers) if text.answers else None
        drafter = FirstOf([make_drafter(replace(drafting, method=m), model) for m in order])
        for event in replay(text.ids, drafter, prompt_tokens=PROMPT_TOKENS):
            statistics.observe(event)
            if isinstance(event, Round):
                time += costs.verify(event.rows)
                time += costs.draft_pass * event.draft_passes
    return statistics.tokens_per_round, statistics.generation_tokens / time


def orders(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The orders that differ: a draft model always answers, so no source after it is asked."""
    cut = [p[: p.index("draft") + 1] if "draft" in p else p for p in permutations(names)]
    return sorted(set(cut), key=cut.index)


def recorder(
    model: str | None, target: Tokenizer[TargetId], steps: int
) -> Callable[[Sequence[TargetId]], Text]:
    """A function that makes texts of ids, with the answers of a draft model if one is given."""
    if model is None:
        return Text
    location = resolve_model(model)
    draft: LanguageModel[DraftId] = LanguageModel.from_folder(location.folder, dtype="float32")
    pair, session = Pair(target, draft.tokenizer), DraftModelSession(draft.model)
    tables = cache(lambda: open_alignment(target, draft.tokenizer, otherwise=align))

    def ask(ids: Sequence[TargetId]) -> Text:
        prompt = Prompt(target=ids[:PROMPT_TOKENS])
        translation = make_translation("exact", pair, prompt, tables)
        return record(ids, NeuralDrafter(session, translation, num_draft_tokens=steps))

    return ask


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--target", default="bielik", show_default=True)
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True), help="Default: found.")
@click.option("--draft-model", help="None by default.")
@click.option("-k", "--num-draft-tokens", "steps", default=2, show_default=True)
@click.option("--limit", type=int, help="Texts of each set.")
@click.option("--tokens", type=int, help="At most so many of each text.")
def main(
    *,
    data: Path,
    target: str,
    dictionary: Path | None,
    draft_model: str | None,
    steps: int,
    limit: int | None,
    tokens: int | None,
) -> None:
    """Print one table per set of texts, with one row per method."""
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    drafting = Drafting(
        dictionary=open_dictionary(tokenizer, files=[dictionary] if dictionary else [])
    )
    make_text = recorder(draft_model, tokenizer, steps)
    names = ["dictionary", "copy", *(["draft"] if draft_model else [])]
    conditions = [*((name,) for name in names), *orders(names), ("hybrid",)]
    for name, (file, text_field) in SETS.items():
        read = read_texts(data / file, field=text_field, limit=limit)
        encoded = [ids[:tokens] for ids in tokenizer.encode_batch(read) if len(ids) > PROMPT_TOKENS]
        texts = [
            make_text(ids)
            for ids in track(encoded, name, console=Console(stderr=True), transient=True)
        ]
        print(f"\n{name}: {len(texts)} texts, {sum(map(len, encoded))} tokens\n")
        print("| method | tokens/round, free | tokens/pass, priced |\n|---|---|---|")
        for order in conditions:
            rounds, _ = measure(texts, drafting, order, PRICES["free"])
            _, passes = measure(texts, drafting, order, PRICES["priced"])
            print(f"| {' > '.join(order)} | {rounds:.4f} | {passes:.4f} |", flush=True)


if __name__ == "__main__":
    main()
