"""The published draft-free trees, and their papers' ablations, in real decoding.

    python benchmarks/draft_free.py --target MODEL --prompts FILE [--limit 10] [--tokens 100]

Token Recycling, SAM-Decoding and UniSpec decode with the target itself; every output is compared
with plain decoding's, and any difference ends the run. Stop ids are ignored, so that every text has
the same length. The store of each condition is kept from request to request, as the papers do, or
emptied with --empty.

UniSpec's draft size is calibrated as its appendix F says: a few draft sizes decode the calibration
prompts (the last ones of the file), a cubic is fitted to their tokens per pass and B-splines to the
time of a pass, and the best ratio is taken. Nothing is timed: passes cost what the first of the
curves given by --curve says, and each column shows the speed-up against plain decoding under one
curve. Beyond a curve's end its last step goes on.

What the target says after an id does not depend on who drafted it, so a row that one condition has
computed is remembered for the others.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import click
import numpy as np
from draft_length import unispec_length
from numpy.typing import NDArray

from tokalign.cli.texts import read_texts
from tokalign.cost.curve import read_curve
from tokalign.cost.expected_gain import Costs
from tokalign.runtime.context import Context
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.adjacency import Adjacency
from tokalign.runtime.draft.lookup import PromptLookupDrafter
from tokalign.runtime.draft.none import NoDrafter
from tokalign.runtime.draft.recycling import RECYCLED_WIDTH, SamDrafter, TokenRecyclingDrafter
from tokalign.runtime.draft.unispec import UNISPEC_WIDTH, Expansion, UniSpecDrafter
from tokalign.runtime.events import Finished, Started
from tokalign.runtime.interfaces import Drafter, RowStore
from tokalign.runtime.limits import Limits
from tokalign.runtime.loop import decode
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.proposal import Proposal, Verdict
from tokalign.runtime.statistics import Statistics
from tokalign.runtime.verify import TargetVerifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

CALIBRATION_SIZES = (8, 24, 48, 80, 110)
CALIBRATION_PROMPTS, CALIBRATION_TOKENS = 5, 40
UNCALIBRATED = 110
"""The draft size that the paper calibrates for an A100."""

NO_EXPANSION = Expansion(threshold=0.0, next_next=False)
UNSCORED = Expansion(scored=False)
THRESHOLDS = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2)

Maker = Callable[[Adjacency], Drafter]


@dataclass
class Found:
    """What a condition took: statistics of its rounds, and how many passes had how many rows."""

    statistics: Statistics = field(default_factory=Statistics)
    rows: list[int] = field(default_factory=list)

    def speedup(self, costs: Costs) -> float:
        """Against one pass per token, if passes are all that takes time."""
        time = sum(costs.verify(rows) for rows in self.rows)
        return self.statistics.generation_tokens * costs.verify(1) / time

    @property
    def drafted(self) -> float:
        """Ids drafted in a round."""
        return sum(self.rows) / len(self.rows) - 1


class Row(NamedTuple):
    """What the target says after some ids: its choice, and its likeliest ids with logarithms."""

    choice: TargetId
    likely: Sequence[TargetId]
    logprobs: Sequence[float]


class LastPass:
    """A store of rows that keeps one pass only."""

    width = UNISPEC_WIDTH

    def learn(
        self,
        ids: Sequence[TargetId],
        tree: TokenTree,
        likely: NDArray[Any],
        logprobs: NDArray[Any],
    ) -> None:
        """See `interfaces.RowStore`."""
        order = np.argsort(-logprobs, axis=-1, kind="stable")
        self.likely = np.take_along_axis(likely, order, axis=-1).tolist()
        self.logprobs = np.take_along_axis(logprobs, order, axis=-1).tolist()


class Remembering:
    """A verifier that computes only the rows of a proposal that were not computed before.

    rows: those that were, by the length of the text and by the ids after it, where ids that go on
    as the text does count as text. text: the prompt with its plain output, empty while unknown.
    """

    def __init__(
        self,
        session: TargetModelSession,
        sampling: Sampling,
        store: RowStore,
        text: Sequence[TargetId],
        rows: dict[tuple[int, tuple[TargetId, ...]], Row],
    ) -> None:
        self._pass = LastPass()
        self._verifier = ChoosingVerifier(session, sampling, self._pass)
        self._store, self._text, self._rows = store, text, rows

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `interfaces.Verifier`."""
        began = perf_counter()
        tree = proposal.tree
        paths = [[tree.ids[i] for i in tree.path_to(index)] for index in range(-1, len(tree))]
        keys = [self._key(len(context.ids), path) for path in paths]
        missing = {index - 1 for index, key in enumerate(keys) if key not in self._rows}
        if missing:
            needed = sorted({i for index in missing for i in tree.path_to(index)})
            choices = self._verifier.choices(context, replace(proposal, tree=tree.select(needed)))
            rows = map(Row, choices, self._pass.likely, self._pass.logprobs)
            for index, row in zip([-1, *needed], rows, strict=True):
                self._rows[keys[index + 1]] = row
        found = [self._rows[key] for key in keys]
        width = self._store.width
        self._store.learn(
            context.ids,
            tree,
            np.array([row.likely[:width] for row in found]),
            np.array([row.logprobs[:width] for row in found]),
        )
        path = tree.agreed_path([row.choice for row in found])
        ids = tuple(found[index].choice for index in (0, *[i + 1 for i in path]))
        seconds = perf_counter() - began
        return Verdict(ids=ids, path=tuple(path), rows=1 + len(tree), model_seconds=seconds)

    def _key(self, length: int, path: Sequence[TargetId]) -> tuple[int, tuple[TargetId, ...]]:
        right = 0
        while right < len(path) and path[right : right + 1] == list(
            self._text[length + right : length + right + 1]
        ):
            right += 1
        return length + right, tuple(path[right:])


class ChoosingVerifier(TargetVerifier):
    """A verifier that tells the target's choice after every row, accepted or not."""

    def choices(self, context: Context, proposal: Proposal) -> list[TargetId]:
        """The choices of one pass, in the order of its rows."""
        computed = self._choose(context, proposal)
        if self._store is not None:
            self._store.learn(context.ids, proposal.tree, *map(np.array, computed.likely))
        return [token for some in computed.chosen for token in self._session.read(some)]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A target with the prompts that it continues."""

    target: LanguageModel[TargetId]
    sampling: Sampling
    tokens: int
    empty: bool
    texts: dict[tuple[TargetId, ...], list[TargetId]] = field(default_factory=dict)
    rows: defaultdict[tuple[TargetId, ...], dict[Any, Row]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def plain(self, prompt: Sequence[TargetId]) -> list[TargetId]:
        """The prompt and the target's own output, and some ids more."""
        key = tuple(prompt)
        if key not in self.texts:
            context = Context(prompt)
            verifier = TargetVerifier(TargetModelSession(self.target.model), self.sampling)
            limits = Limits(max_tokens=self.tokens + 16)
            for _ in decode(context, NoDrafter(), verifier, limits=limits):
                pass
            self.texts[key] = list(context.ids)
        return self.texts[key]

    def outputs(
        self, make: Maker, width: int, prompts: Sequence[Sequence[TargetId]], found: Found
    ) -> Iterator[list[TargetId]]:
        """Decode after every prompt, and add what it took to `found`."""
        store = Adjacency(width)
        session = TargetModelSession(self.target.model)
        for prompt in prompts:
            store = Adjacency(width) if self.empty else store
            context = Context(prompt)
            known = self.rows[tuple(prompt)]
            verifier = Remembering(session, self.sampling, store, self.plain(prompt), known)
            limits = Limits(max_tokens=self.tokens)
            for event in decode(context, make(store), verifier, limits=limits):
                found.statistics.observe(event)
                if not isinstance(event, Started | Finished):
                    found.rows.append(event.rows)
            yield list(context.emitted)


def conditions(size: int) -> dict[str, tuple[Maker, int]]:
    """By name: how to make the drafter, and the width of its store. size: UniSpec's g*."""

    def unispec(expansion: Expansion, draft_size: int = size) -> tuple[Maker, int]:
        return (
            lambda rows: UniSpecDrafter(rows, size=draft_size, expansion=expansion),
            UNISPEC_WIDTH,
        )

    published = Expansion()
    found: dict[str, tuple[Maker, int]] = {
        "prompt lookup": (lambda _: PromptLookupDrafter(), 1),
        f"UniSpec, g = {size}": unispec(published),
        "without score estimation": unispec(UNSCORED),
        "without tree expansion": unispec(NO_EXPANSION),
        "without next-next candidates": unispec(replace(published, next_next=False)),
    }
    for threshold in THRESHOLDS:
        found[f"r = {threshold:g}"] = unispec(replace(published, threshold=threshold))
    found["Token Recycling"] = TokenRecyclingDrafter, RECYCLED_WIDTH
    found["SAM-Decoding"] = lambda rows: SamDrafter(TokenRecyclingDrafter(rows)), RECYCLED_WIDTH
    found[f"without calibration, g = {UNCALIBRATED}"] = unispec(published, UNCALIBRATED)
    return found


@click.command()
@click.option("--target", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--limit", default=10, show_default=True, help="Prompts, the first of the file.")
@click.option("--tokens", default=100, show_default=True, help="Tokens of each output.")
@click.option("--temp", default=0.7, show_default=True)
@click.option("--empty", is_flag=True, help="Begin every request with an empty store.")
@click.option("--size", type=int, help="UniSpec's draft size. Default: calibrated.")
@click.option("--only", help="Only conditions whose names contain this.")
@click.option("--curve", "curves", multiple=True, default=("m2", "m1-max", "m3-max", "m5-max"))
def benchmark(
    *,
    target: Path,
    prompts: Path,
    limit: int,
    tokens: int,
    temp: float,
    empty: bool,
    size: int | None,
    only: str | None,
    curves: tuple[str, ...],
) -> None:
    """Print one row per condition."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    bench = Bench(target=model, sampling=Sampling(temperature=temp), tokens=tokens, empty=empty)
    texts = [model.tokenizer.encode(text) for text in read_texts(prompts, field="text")]
    costs = {name: Costs(rows=read_curve(name).rows_at(128)) for name in curves}
    if size is None:
        few = replace(bench, tokens=CALIBRATION_TOKENS)
        size = calibrated(few, texts[-CALIBRATION_PROMPTS:], costs[curves[0]])
    texts = texts[:limit]
    plain = [bench.plain(text)[len(text) :][:tokens] for text in texts]
    click.echo(f"| | tokens per pass | drafted | host ms p50 | {' | '.join(curves)} |")
    click.echo("|---" * (4 + len(curves)) + "|")
    for name, (make, width) in conditions(size).items():
        if only is not None and only not in name:
            continue
        found = Found()
        if list(bench.outputs(make, width, texts, found)) != plain:
            sys.exit(f"{name} changed the output")
        statistics = found.statistics
        speedups = " | ".join(f"{found.speedup(c):.3f}" for c in costs.values())
        click.echo(
            f"| {name} | {statistics.tokens_per_round:.3f} | {found.drafted:.1f} "
            f"| {statistics.host_ms_per_round['p50']:.2f} | {speedups} |"
        )


def calibrated(bench: Bench, prompts: Sequence[Sequence[TargetId]], costs: Costs) -> int:
    """UniSpec's g* for passes of these costs."""
    tokens = []
    for size in CALIBRATION_SIZES:
        found = Found()
        make = partial(UniSpecDrafter, size=size)
        for _ in bench.outputs(make, UNISPEC_WIDTH, prompts, found):
            pass
        tokens.append(found.statistics.tokens_per_round)
    times = [costs.verify(1 + size) for size in CALIBRATION_SIZES]
    best = unispec_length(CALIBRATION_SIZES, tokens, times)
    measured = ", ".join(f"{g}: {t:.3f}" for g, t in zip(CALIBRATION_SIZES, tokens, strict=True))
    click.echo(f"calibration: tokens per pass by draft size {measured}; g* = {best}", err=True)
    return best


if __name__ == "__main__":
    benchmark()
