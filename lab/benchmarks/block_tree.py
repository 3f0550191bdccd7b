"""A trained drafter in one tree with the free sources: what each adds, at equal rows.

    python -m lab.benchmarks.block_tree rows --target MODEL --drafter FOLDER --prompts FILE \
        [--rows 4,8,16] [--limit 16] [--tokens 64] [--temp 0] [--cache FILE]
    python -m lab.benchmarks.block_tree rows --target MODEL --ideal FILE.npz [--wrong 0.33] [...]

`tokalign train` makes drafters, of any kind; `ideal_block.py` records an ideal one. `rows` gives
tokens per pass of the drafter's best chain, as its authors verify it; of the best tree of its own,
which is DDTree for a block drafter; of the free sources alone; and of all in one tree. Then the
ratios of all to each of these, with 95 % intervals (bootstrap over prompts). With --drafter the
target decodes, and every output is compared with plain decoding's. With --ideal its text is played:
it is decoded plainly once, and kept in --cache for further runs; what it says after other ids is
not computed, and teaches the logit store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from lab.baselines.whole_beams import WholeBeams
from lab.benchmarks.ideal_block import IdealDrafter, IdealSession, openings, plainly
from lab.benchmarks.paired_lines import interval, table
from lab.benchmarks.remembered_target import (
    MOST_DEPTH,
    RememberingVerifier,
    Text,
    load_texts,
    save_texts,
)
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.lookup import LogitStore, dictionary_sources, logit_sources
from tokalign.runtime.draft.mixing import Source
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.draft.trained import BLOCK, BeamDrafter, BlockDrafter
from tokalign.runtime.draft.tree import FREE_ROWS, TreeDrafter
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.beam_search import BeamShape
from tokalign.runtime.mlx.dflash_session import DFlashSession
from tokalign.runtime.mlx.drafter_folder import named_drafter
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, Verdict, Verifier
from tokalign.tables.opening import open_dictionary
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

CHAIN, OWN, FREE, ALL = "chain", "its tree", "free", "all"

_LISTED = 32
"""Ids of a position that DDTree looks at."""

_PATH = click.Path(path_type=Path, exists=True)


class DDTree(Drafter):
    """The best tree of a block drafter's own marginals: Algorithm 1 of DDTree (Ringel and Romano).

    A node is a row of ranks, one for each position. The most probable one leaves the heap and joins
    the tree; the next rank at its last position enters the heap, and rank 0 at the next position.
    """

    def __init__(self, session: Any, rows: int, sampler: Sampling | None) -> None:
        self._session, self._rows, self._sampler = session, rows, sampler

    def propose(self, context: Context, limit: int) -> Proposal:
        positions = self._session.draft(context.ids, _LISTED, self._sampler).positions[:limit]
        ids: list[TargetId] = []
        parents: list[int] = []
        probabilities: list[float] = []
        # The negative log-probability of a path, its last rank, its depth and its parent.
        heap = [(-positions[0][0][1], 0, 0, -1)] if positions else []
        while heap and len(ids) < self._rows:
            cost, rank, depth, parent = heappop(heap)
            token, logprob = positions[depth][rank]
            ids.append(token)
            parents.append(parent)
            probabilities.append(exp(logprob))
            if rank + 1 < len(positions[depth]):
                sibling = cost + logprob - positions[depth][rank + 1][1]
                heappush(heap, (sibling, rank + 1, depth, parent))
            if depth + 1 < len(positions):
                child = cost - positions[depth + 1][0][1]
                heappush(heap, (child, 0, depth + 1, len(ids) - 1))
        names = (BLOCK,) * len(ids)
        return Proposal(tree=TokenTree(tuple(ids), tuple(parents), names, tuple(probabilities)))


class PlayingVerifier(RememberingVerifier):
    """Plays a text: of a proposal, only rows on its path are known."""

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """See `rounds.Verifier`."""
        at, tree = len(context.ids), proposal.tree
        right = tree.path_of(self._text[at:])
        known = [self._key(at, self._text[at : at + n]) for n in range(1 + len(right))]
        if self._store is not None:
            likely = self._rows.likely(known, self._store.width)
            self._store.learn(context.ids, tree.select(right), *likely)
        ids = tuple(self._text[at : at + 1 + len(right)])
        return Verdict(ids=ids, path=tuple(right), rows=1 + len(tree))


def played_text(
    target: LanguageModel[TargetId], prompt: Sequence[TargetId], tokens: int, sampler: Sampling
) -> Text:
    """What the target writes after a prompt, with the rows that it was chosen from."""
    emitted, _ = plainly(target.model, prompt, sampler, tokens)
    text = Text([*prompt, *emitted, *emitted[-1:] * MOST_DEPTH], len(prompt), sampler)
    reader = RememberingVerifier(TargetModelSession(target.model), text, None)
    chain = TokenTree.chain(emitted, "")
    reader.verify(Context(prompt), Proposal(tree=chain))
    return text


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured. ideal: instead of a network. length: ids of a draft by beams."""

    target: LanguageModel[TargetId]
    texts: Sequence[Text]
    temperature: float
    dictionary: Any = None
    network: TrainedDrafter | None = None
    ideal: IdealDrafter | None = None
    length: int = 4
    counts: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)

    def measure(self, name: str, most: int) -> None:
        """Count tokens and passes of every text. most: ids of a proposal."""
        mixing, store = Mixing(), LogitStore()
        for number, text in track([*enumerate(self.texts)], console=Console(stderr=True)):
            drafts = None if name == FREE or self.network is None else self.network.watch
            session = TargetModelSession(self.target.model, watch=drafts)
            assert isinstance(text.sampler, Sampling)
            sampler = text.sampler if self.temperature else None
            own = None if name == FREE else self._session(session, number, text)
            drafter = self._drafter(name, most, own, sampler, mixing, store)
            verifier: Verifier = TargetVerifier(session, text.sampler, store)
            if self.ideal is not None:
                verifier = PlayingVerifier(session, text, store)
            context = Context(text.ids[: text.given])
            limits = Limits(max_tokens=len(text.output), target=session)
            events = [*Decoding(context, drafter, verifier, limits=limits)]
            assert [*context.emitted] == text.output, "an output differs"
            passes = sum(isinstance(event, Round) for event in events)
            self.counts.setdefault((name, most), []).append((len(text.output), passes))

    def _session(self, session: TargetModelSession, number: int, text: Text) -> Any:
        if self.ideal is not None:
            size = session.vocabulary_size
            return self.ideal.session(number, text.given, size, self.temperature)
        assert self.network is not None
        return self.network.session(session)

    def _drafter(
        self,
        name: str,
        most: int,
        session: Any,
        sampler: Sampling | None,
        mixing: Mixing,
        store: LogitStore,
    ) -> Drafter:
        model: ModelDrafter | None = None
        if isinstance(session, DFlashSession | IdealSession):
            if name == OWN:
                return DDTree(session, most, sampler)
            model = BlockDrafter(session, most if name == CHAIN else None, sampler=sampler)  # type: ignore[arg-type]
        elif session is not None:
            length = min(most, self.length)
            if name == CHAIN:
                model = WholeBeams(session, BeamShape(1, length), sampler)
            else:
                model = BeamDrafter(session, length, sampler=sampler)
            if name == OWN:
                model.choose = lambda tree, limit: tree.most_probable(  # type: ignore[method-assign]
                    most, least=0.0, depth=limit
                )
        if model is not None and name != ALL:
            return model
        sources: list[Source] = [ContextCopy(), *logit_sources(store)]
        sources += [] if self.dictionary is None else dictionary_sources(self.dictionary)
        size = self.target.model.args.vocab_size
        noise = None if sampler is None else sampler.noise_ahead(size)
        free = TreeDrafter(sources, rows=most, mixing=mixing, noise=noise)
        if model is None:
            return free
        given = Knowledge.given(FREE_ROWS)
        return Controller(given, free, model, timed=False)


def bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `open_bench` takes."""
    for option in reversed(
        (
            click.option("--target", type=_PATH, required=True),
            click.option("--drafter", type=_PATH),
            click.option("--ideal", type=_PATH),
            click.option("--wrong", type=float, default=0.0, show_default=True),
            click.option("--prompts", type=_PATH, required=True),
            click.option("--limit", type=int, default=16, show_default=True),
            click.option("--tokens", type=int, default=64, show_default=True),
            click.option("--temp", type=float, default=0.0, show_default=True),
            click.option("--length", type=int, default=4, show_default=True),
            click.option("--language", default="pl", show_default=True),
            click.option("--cache", type=click.Path(path_type=Path)),
        )
    ):
        command = option(command)
    return command


@click.group()
def benchmark() -> None:
    """Measure a trained drafter."""


@benchmark.command()
@bench_options
@click.option("--rows", default="4,8,16", show_default=True)
@click.option("--only", default=f"{CHAIN},{OWN},{FREE},{ALL}", show_default=True)
def rows(rows: str, only: str, **options: Any) -> None:
    """Tokens per pass, by rows; a proposal has one id less than its pass has rows."""
    bench = open_bench(**options)
    counts, names = [int(row) for row in rows.split(",")], only.split(",")
    for name in names:
        for count in counts:
            bench.measure(name, count - 1)
    save_texts(bench.texts, options["cache"])
    lines = []
    for name in names:
        cells = [bench.counts[name, count - 1] for count in counts]
        lines.append([name, *[f"{_tokens(cell) / _passes(cell):.3f}" for cell in cells]])
    for name in names if ALL in names else ():
        if name != ALL:
            lines.append([f"all over {name}"])
            for count in counts:
                ours, theirs = bench.counts[ALL, count - 1], bench.counts[name, count - 1]
                parts, wholes = ([passes for _, passes in of] for of in (theirs, ours))
                lines[-1].append(interval(np.array(parts, float), np.array(wholes, float)))
    click.echo(f"T = {bench.temperature}, {len(bench.texts)} prompts\n")
    click.echo(table(["", *[f"{count} rows" for count in counts]], lines))


def open_bench(
    target: Path,
    drafter: Path | None,
    ideal: Path | None,
    wrong: float,
    prompts: Path,
    limit: int,
    tokens: int,
    temp: float,
    length: int,
    language: str,
    cache: Path | None,
) -> Bench:
    """What `rows` measures, by its options."""
    model: LanguageModel[TargetId] = LanguageModel.from_folder(target, dtype="float32")
    texts: Sequence[Text] | None = load_texts(cache)
    if texts is None:
        texts = [
            played_text(model, prompt, tokens, Sampling(temperature=temp, seed=number))
            for number, prompt in enumerate(openings(prompts, limit, model))
        ]
        save_texts(texts, cache)
    return Bench(
        target=model,
        texts=texts,
        temperature=temp,
        length=length,
        dictionary=open_dictionary(model.tokenizer, languages=[language], model_folder=target),
        network=None if drafter is None else named_drafter(drafter, model),
        ideal=None if ideal is None else IdealDrafter.read(ideal, wrong),
    )


def _tokens(cell: Sequence[tuple[int, int]]) -> int:
    return sum(tokens for tokens, _ in cell)


def _passes(cell: Sequence[tuple[int, int]]) -> int:
    return sum(passes for _, passes in cell)


if __name__ == "__main__":
    benchmark()
