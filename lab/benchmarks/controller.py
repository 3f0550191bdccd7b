"""The controller on other machines: traces replayed under every shipped curve.

    python -m lab.traces --text --target bielik --method hybrid -k 16 \
        --trace hybrid.pickle wiki200.jsonl
    python -m lab.traces --text --draft DRAFT --target bielik --method exact -k 6 \
        --trace draft.pickle wiki200.jsonl
    python -m lab.benchmarks.controller hybrid.pickle draft.pickle \
        [--together hybrid.pickle,draft.pickle]

One row per trace and curve shows the speed-up against plain decoding of the best fixed draft
length, chosen in hindsight, and of `auto`. `auto` begins with the true curve; with `--blind` it
begins with that of 24 % per row, whose unit it does not know. Nothing is timed. The
program fails where `auto` is below 0.99 of plain decoding or 0.97 of the best fixed length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from lab.project import costs_under, project
from lab.recorded_proposals import ProposalTrace, TracedText
from lab.round_costs import RoundCosts
from lab.traces import read_trace
from tokalign.errors import UsageError
from tokalign.runtime.cost import read_curve, shipped_names
from tokalign.runtime.draft.costs import MAX_DRAFT, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFT

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10)
_PATH = click.Path(path_type=Path, exists=True)


@click.command()
@click.argument("traces", nargs=-1, type=_PATH)
@click.option("--together", multiple=True, metavar="FILE,FILE", help="Traces of the same texts.")
@click.option("--draft-pass", type=float, default=0.071, show_default=True, help="Plain passes.")
@click.option("--host", type=float, default=0.01, show_default=True, help="Plain passes a round.")
@click.option("--blind", is_flag=True, help="auto begins with another machine's curve.")
def benchmark(
    traces: tuple[Path, ...],
    together: tuple[str, ...],
    draft_pass: float,
    host: float,
    blind: bool,
) -> None:
    """Print the table; exit 1 if `auto` is below one of the two limits."""
    rows = [(path.stem, read_trace(path)) for path in traces]
    for names in together:
        paths = [Path(name) for name in names.split(",")]
        rows.append((" + ".join(path.stem for path in paths), _merged(paths)))
    click.echo("| trace | tokens | curve | best fixed | speed-up | auto | / best fixed |")
    click.echo("|---|---|---|---|---|---|---|")
    missed = False
    for name, trace in rows:
        for curve in shipped_names():
            known = costs_under(read_curve(curve), draft_pass=draft_pass)
            costs = RoundCosts(rows=known.rows, draft_pass=known.draft_pass, host=host)
            knowledge = partial(_blind_knowledge, costs) if blind else None
            missed |= _row(name, trace, curve, costs, knowledge)
    sys.exit(missed)


def _row(
    name: str,
    trace: ProposalTrace,
    curve: str,
    costs: RoundCosts,
    knowledge: Callable[[], Knowledge] | None,
) -> bool:
    """Print one row; returns whether `auto` is below one of the limits."""
    found = project(trace, costs, lengths=LENGTHS, knowledge=knowledge)
    best = found.fixed[found.best]
    missed = found.auto < 0.99 or found.auto < 0.97 * best
    click.echo(
        f"| {name} | {trace.tokens} | {curve} | {found.best} | {best:.3f} "
        f"| {found.auto:.3f} | {found.auto / best:.3f}{' (missed)' if missed else ''} |"
    )
    return missed


def _blind_knowledge(costs: RoundCosts) -> Knowledge:
    rows = PassTimes(read_curve("24-percent-per-row").row_times, weight=0)
    drafts = PassTimes([0.1 * n for n in range(1, MAX_DRAFT + 1)], weight=0)
    return Knowledge(costs=LearnedCosts(rows), models={DRAFT: ModelKnowledge(drafts)})


def _merged(paths: Sequence[Path]) -> ProposalTrace:
    """The proposals of several traces at the same positions of the same texts."""
    traces = [read_trace(path) for path in paths]
    texts = []
    for same in zip(*(trace.texts for trace in traces), strict=False):
        if len({(text.given, text.length) for text in same}) > 1:
            raise UsageError(f"{paths} are not of the same texts; record them again")
        found = {name: by for text in same for name, by in text.proposals.items()}
        texts.append(TracedText(given=same[0].given, length=same[0].length, proposals=found))
    return ProposalTrace(texts=tuple(texts))


if __name__ == "__main__":
    benchmark()
