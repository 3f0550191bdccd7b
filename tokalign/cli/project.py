"""`tokalign project`: the speed-up to expect of recorded proposals on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokalign.cli.option_types import NAME, PATH, FiniteRange
from tokalign.cli.output import echo, json_option, note, print_json, quiet_option, table

if TYPE_CHECKING:
    from tokalign.evaluate.project import Projection


@click.command("project")
@click.option(
    "--trace",
    "file",
    metavar="FILE",
    required=True,
    type=PATH,
    help="Written by replay, emulate or decode with --trace, or by decode --json.",
)
@click.option(
    "--cost",
    "curves",
    type=NAME,
    metavar="CURVE",
    multiple=True,
    help="A curve of `tokalign calibrate` or a shipped one; repeatable. Default: all shipped.",
)
@click.option(
    "--draft-pass",
    type=FiniteRange(min=0),
    metavar="PASSES",
    help="Cost of a pass of the draft model in passes of the target. Default: the curve's, or 0.1.",
)
@json_option
@quiet_option
def command(
    file: Path, curves: tuple[str, ...], draft_pass: float | None, as_json: bool, quiet: bool
) -> None:
    """Say what speed-up a trace promises under cost curves, by draft length and with `auto`."""
    from tokalign.cost.curve import read_curve, shipped_names
    from tokalign.evaluate.project import costs_under, project
    from tokalign.evaluate.recorded_proposals import read_trace

    trace = read_trace(file)
    if not trace.every_position:
        note(
            "the trace is of one generation: figures for other draft lengths are approximate "
            "(replay --trace records a trace that makes them exact)",
            quiet=quiet,
        )
    found = {}
    for name in curves or shipped_names():
        curve = read_curve(name)
        note(f"{name}: {curve.source}", quiet=quiet)
        costs = costs_under(curve, trace, draft_pass=draft_pass)
        found[name] = project(trace, costs)
    if as_json:
        print_json({"tokens": trace.tokens, "curves": {n: _figures(p) for n, p in found.items()}})
    else:
        echo(table((name, _sentence(projection)) for name, projection in found.items()))


def _figures(projection: Projection) -> dict[str, Any]:
    return {
        "auto": round(projection.auto, 4),
        "best_length": projection.best,
        "best_fixed": round(projection.fixed[projection.best], 4),
        "fixed": {str(k): round(speedup, 4) for k, speedup in projection.fixed.items()},
    }


def _sentence(projection: Projection) -> str:
    by_length = ", ".join(f"{k}: {v:.2f}" for k, v in projection.fixed.items() if k)
    best = projection.best
    verdict = f"best fixed length {best} ({projection.fixed[best]:.2f} x)" if best else "plain"
    return f"auto {projection.auto:.2f} x plain; {verdict}; by length {by_length}"
