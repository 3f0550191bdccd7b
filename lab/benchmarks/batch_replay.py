"""What drafts bring to requests that share passes, by replay of recorded answers under a curve.

    python -m lab.benchmarks.batch_replay ANSWERS TARGET [--requests 1,2,4,8] [--curve cpu]
        [--learns] [--dictionary FILE] [--kind editing] [--kind polish]

ANSWERS is a folder of `lab.benchmarks.recorded_answers`. So many answers are decoded together;
where one ends, the next begins, until none is left. The free sources draft, each request under the
controller that `auto` has, which knows the curve; with `--learns` it begins with the assumed one. A
round costs C(rows of all). Plain batching costs C(requests) for as many ids as there are requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from lab.benchmarks.free_sources import RecordedVerifier, costs_of, drafting_for, noise_of
from lab.benchmarks.real_prompts import KINDS
from lab.benchmarks.recorded_answers import Answer, read_answers
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.controller import Controller
from tokalign.runtime.draft.costs import Costs, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.shared_costs import SharedCosts, worth_verifying
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.rounds import Context
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

ASSUMED = "24-percent-per-row"


class Replayed:
    """Requests that are decoded together until one ends and none is left to take its place."""

    def __init__(self, drafting: Drafting, costs: Costs, vocabulary: int, *, knows: bool) -> None:
        self._drafting, self._costs, self._vocabulary = drafting, costs, vocabulary
        known = PassTimes(costs.rows, weight=1_000_000)
        self._learned = LearnedCosts(
            known if knows else PassTimes(costs_of(ASSUMED).rows, weight=0)
        )
        self._knowledge = Knowledge(costs=self._learned)
        self._knowledge.rounds = 1  # the times are known, so none are measured first
        self.time, self.tokens, self.rows, self.passes = 0.0, 0, 0, 0

    def begin(self, answer: Answer) -> Decoding:
        store = LogitStore()
        drafting = replace(
            self._drafting.for_prompt(answer.prompt),
            knowledge=self._knowledge,
            logits=store,
            mixing=Mixing(),
        )
        return Decoding(
            Context(answer.prompt),
            make_drafter(drafting, noise=noise_of(answer, self._vocabulary)),
            RecordedVerifier(answer, store),
            limits=Limits(max_tokens=len(answer.ids)),
            clock=lambda: 0.0,
        )

    def run(self, answers: Sequence[Answer], requests: int) -> None:
        waiting: Iterator[Answer] = iter(answers)
        running = [self.begin(next(waiting)) for _ in range(requests)]
        while True:
            self.round(running)
            for place, decoding in enumerate(running):
                if decoding.ends:
                    following = next(waiting, None)
                    if following is None:
                        return
                    running[place] = self.begin(following)

    def round(self, running: Sequence[Decoding]) -> None:
        """As `tokalign.runtime.batch.Batch.round`, with time as the curve has it."""
        count, times = len(running), self._learned.rows
        proposals = []
        for decoding in running:
            assert isinstance(decoding.drafter, Controller)
            shared = SharedCosts(self._learned, count, runs_ahead=False)
            decoding.drafter.costs = shared if count > 1 else self._learned
            proposals.append(decoding.propose())
        if count > 1:
            trees = worth_verifying([(one.tree, True) for one in proposals], times)
            pairs = zip(proposals, trees, strict=True)
            proposals = [replace(one, tree=tree) for one, tree in pairs]
        rows = count + sum(len(one.tree) for one in proposals)
        took, plain = self._costs.verify(rows), self._costs.verify(count)
        times.count_round()
        times.observe(rows, took)
        further = (took - plain) / max(1, rows - count)
        for decoding, proposal in zip(running, proposals, strict=True):
            verdict = decoding.verifier.verify(decoding.context, proposal)
            seconds = plain / count + further * len(proposal.tree)
            self.tokens += len(decoding.commit(proposal, verdict, seconds).emitted)
        self.time, self.rows, self.passes = self.time + took, self.rows + rows, self.passes + 1


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("target")
@click.option("--requests", default="1,2,4,8", show_default=True)
@click.option("--curve", "curves", multiple=True, default=("cpu", "m4-pro", "m3-max"))
@click.option("--dictionary", "dictionaries", multiple=True, type=click.Path(path_type=Path))
@click.option("--learns", is_flag=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS)
def main(
    folder: Path,
    target: str,
    requests: str,
    curves: Sequence[str],
    dictionaries: Sequence[Path],
    kinds: Sequence[str],
    learns: bool,
) -> None:
    """Replay, and print a line for each curve and number of requests."""
    answers = [one for one in read_answers(folder) if one.kind in kinds]
    answers.sort(key=lambda one: (one.number, one.kind))
    counts = [int(count) for count in requests.split(",")]
    if len(answers) < max(counts):
        raise click.UsageError(f"{len(answers)} answers are too few for {max(counts)} requests")
    vocabulary = 1 + max(int(answer.likely.max()) for answer in answers)
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    drafting = drafting_for(tokenizer if dictionaries else None, dictionaries)
    for curve in curves:
        costs = costs_of(curve)
        for count in counts:
            replayed = Replayed(drafting, costs, vocabulary, knows=not learns)
            replayed.run(answers, count)
            each = replayed.tokens / count
            click.echo(
                f"{curve}, {count} requests: {each / replayed.passes:.2f} tokens of each "
                f"and {replayed.rows / replayed.passes:.1f} rows a pass, "
                f"{each * costs.verify(count) / replayed.time:.3f} x plain batching"
            )


if __name__ == "__main__":
    main()
