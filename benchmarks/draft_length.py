"""Two ways to choose a fixed draft length: measure every length, or UniSpec's regression.

    tokalign emulate --method hybrid --target bielik --text wiki200.jsonl --prompt-tokens 12 \
        --max-draft 16 --trace hybrid.jsonl
    tokalign replay --draft DRAFT --target bielik --text wiki200.jsonl --num-draft-tokens 12 \
        --trace draft.jsonl
    python benchmarks/draft_length.py hybrid.jsonl draft.jsonl

Both ways see a few texts of a trace under a shipped cost curve and choose a length, and the other
texts judge the choice; every group of texts takes its turn. UniSpec (Do, Le and Nguyen, ACL 2026,
Appendix F) fits the time of a step by B-splines of degree 2 on 8 knots and its tokens by a cubic,
and maximizes their ratio by differential evolution. Nothing is timed: passes cost what the curve
says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import click
import numpy as np
from scipy.interpolate import BSpline
from scipy.optimize import differential_evolution

from tokalign.cost.curve import read_curve, shipped_names
from tokalign.cost.expected_gain import Costs
from tokalign.evaluate.project import costs_under, project
from tokalign.evaluate.recorded_proposals import ProposalTrace, read_trace

DEGREE, KNOTS = 2, 8


@click.command()
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--draft-pass", type=float, default=0.071, show_default=True, help="Plain passes.")
@click.option("--texts", type=int, default=5, show_default=True, help="Texts to choose by.")
@click.option("--longest", type=int, default=12, show_default=True, help="Draft length at most.")
def benchmark(traces: tuple[Path, ...], draft_pass: float, texts: int, longest: int) -> None:
    """Print a row for each trace and curve: the lengths chosen, and the mean speed-up they give."""
    click.echo(
        "| trace | curve | every length | | UniSpec | | in hindsight | |\n" + "|---" * 8 + "|"
    )
    lengths = range(1, longest + 1)
    for path in traces:
        trace = read_trace(path)
        for name in shipped_names():
            costs = costs_under(read_curve(name), trace, draft_pass=draft_pass)
            chosen: dict[str, list[tuple[int, float]]] = {}
            for start in range(0, len(trace.texts) - texts + 1, texts):
                group = trace.texts[start : start + texts]
                seen = replace(trace, texts=group)
                judged = replace(trace, texts=tuple(t for t in trace.texts if t not in group))
                fixed = project(judged, costs, lengths=lengths)
                for way, length in {
                    "every length": project(seen, costs, lengths=lengths).best,
                    "UniSpec": unispec_length(
                        range(longest + 1), *zip(*steps(seen, costs, longest), strict=True)
                    ),
                    "in hindsight": fixed.best,
                }.items():
                    chosen.setdefault(way, []).append((length, fixed.fixed[length]))
            shown = (
                f"{' '.join(str(length) for length, _ in found)} "
                f"| {fmean(speedup for _, speedup in found):.3f}"
                for found in chosen.values()
            )
            click.echo(f"| {path.stem} | {name} | {' | '.join(shown)} |")


def steps(trace: ProposalTrace, costs: Costs, longest: int) -> Iterator[tuple[float, float]]:
    """Mean tokens and time of a step at draft lengths 0, 1, ..., over all positions."""
    yield 1.0, costs.verify(1)
    for length in range(1, longest + 1):
        kept = [one.at_most(length) for one in trace.proposals]
        times = [o.passes * costs.draft_pass + costs.verify(1 + len(o.tree)) for o in kept]
        yield 1 + float(np.mean([o.accepted for o in kept])), float(np.mean(times))


def unispec_length(sizes: Sequence[int], tokens: Sequence[float], times: Sequence[float]) -> int:
    """The draft length that UniSpec's calibration chooses.

    sizes: the lengths that were measured, ascending. tokens, times: of a step at each of them.
    """
    least, longest = sizes[0], sizes[-1]
    lengths = np.array(sizes, dtype=float)
    inner = np.linspace(least, longest, KNOTS)
    beyond = (inner[1] - inner[0]) * np.arange(1, DEGREE + 1)
    knots = np.concatenate([inner[0] - beyond[::-1], inner, inner[-1] + beyond])
    basis = BSpline.design_matrix(lengths, knots, DEGREE).toarray()
    time = BSpline(knots, np.linalg.lstsq(basis, np.array(times))[0], DEGREE)
    accepted = np.polynomial.Polynomial.fit(lengths, tokens, deg=3)
    found = differential_evolution(
        lambda g: -float(accepted(g[0]) / time(g[0])),
        [(least, longest)],
        seed=42,
        maxiter=1000,
        atol=1e-6,
        tol=1e-6,
    )
    return round(float(found.x[0]))


if __name__ == "__main__":
    benchmark()
