"""Weights of what a trained drafter contributes to the tree, fitted to recorded answers.

    python -m lab.benchmarks.mixture_fit record --target MODEL --prompts FILE --output FILE.pickle \
        --drafter FOLDER | --ideal FILE.npz [--wrong 0] [--rows 8] [--temp 0] [--limit 16]
    python -m lab.benchmarks.mixture_fit fit FILE.pickle ... [--source block]

`record` decodes with all sources in one tree (`block_tree.py`) and keeps, for every place of the
text at which the tree was looked at, what each source expected there and which id was emitted.
`fit` takes the weights of the other sources as they are, and fits those of the drafter by logistic
regression, at every depth apart: the factor on its log-odds, and what is added where it names an id
that others name too, where it names others only, and where it alone names an id (`Weights`).
Beside them stands the mean log-loss of each id, before and after.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.block_tree import ALL, bench_options, open_bench
from lab.benchmarks.paired_lines import table
from tokalign.runtime.draft.mixing import Candidate, Expected, Mixer, Mixing
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.draft.weights import weights_of
from tokalign.tokenizer.vocabulary import TargetId

_PATH = click.Path(path_type=Path, exists=True)
_RIDGE, _STEPS, _PRIOR = 1.0, 30, (0.7, 0.0, 0.0, 0.0)


class Answered(NamedTuple):
    """What the sources expected at a place, by name, and what was emitted there.

    depth: how many ids of the tree come before. lifts: the logarithm of the noise that each
    expected id is chosen with; empty where the target decodes greedily.
    """

    depth: int
    expected: dict[str, Sequence[tuple[TargetId, float]]]
    lifts: dict[TargetId, float]
    emitted: TargetId


class RecordingMixer(Mixer):
    """A mixer that keeps what it was told at the places that were looked at."""

    def __init__(self, kept: list[Answered], mixing: Mixing, names: Sequence[str], *how: Any):
        super().__init__(mixing, names, *how)
        self._kept, self._named = kept, names
        self._open: list[
            tuple[Sequence[Candidate], int, dict[str, Any], dict[TargetId, float]]
        ] = []

    def candidates(
        self,
        answers: Sequence[Expected],
        least: float,
        stated: float,
        noise: Sequence[float] | None = None,
        depth: int = 0,
        allows: Callable[[TargetId], bool] | None = None,
    ) -> tuple[list[Candidate], list[float]]:
        found, chances = super().candidates(answers, least, stated, noise, depth, allows)
        expected = {self._named[place]: listed for place, listed in answers}
        lifts = {}
        if noise is not None:
            lifts = {token: log(noise[token]) for of in expected.values() for token, _ in of}
        self._open = [*self._open[-64:], (found, depth, expected, lifts)]
        return found, chances

    def learn(self, candidates: Sequence[Candidate], emitted: TargetId, depth: int = 0) -> None:
        super().learn(candidates, emitted, depth)
        for found, at, expected, lifts in self._open:
            if found is candidates and expected:
                self._kept.append(Answered(at, expected, lifts, emitted))


class RecordingTree(TreeDrafter):
    """A tree whose answers are kept."""

    def __init__(self, kept: list[Answered], *sources: Any, **how: Any) -> None:
        super().__init__(*sources, **how)
        self._kept = kept

    def _make_mixer(self, *of: Any) -> Mixer:
        return RecordingMixer(self._kept, *of)


@click.group()
def benchmark() -> None:
    """Fit what a trained drafter contributes."""


@benchmark.command()
@bench_options
@click.option("--rows", type=int, default=8, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def record(rows: int, output: Path, **options: Any) -> None:
    """Keep what the sources expected, and what was emitted."""
    kept: list[Answered] = []
    bench = open_bench(**options, make_tree=partial(RecordingTree, kept))
    bench.measure(ALL, rows - 1)
    output.write_bytes(pickle.dumps(kept))
    click.echo(f"{len(kept)} places")


@benchmark.command()
@click.argument("files", type=_PATH, nargs=-1, required=True)
@click.option("--source", default="block", show_default=True)
def fit(files: Sequence[Path], source: str) -> None:
    """Fit the weights of a source at every depth."""
    places = [one for file in files for one in pickle.loads(file.read_bytes())]
    lines = []
    for depth in range(1 + max(one.depth for one in places)):
        known = [one for one in places if one.depth == depth and source in one.expected]
        if len(known) < 20:
            continue
        parts = [_features(one, source) for one in known]
        x, offsets, right = (np.concatenate(of) for of in zip(*parts, strict=True))
        before = _loss(x @ np.array(weights_of(source)[:4]) + offsets, right)
        weights = _regression(x, offsets, right)
        after = _loss(x @ weights + offsets, right)
        cells = [f"{value:.2f}" for value in weights]
        lines.append([str(depth), str(len(known)), *cells, f"{before:.4f}", f"{after:.4f}"])
    click.echo(
        table(["depth", "places", "odds", "named", "silent", "alone", "loss", "fitted"], lines)
    )


def _features(
    one: Answered, source: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """f[ids, 4] of the source, f[ids] that the others contribute, and whether each id was right."""
    total, shared = dict[TargetId, float](), set[TargetId]()
    names = [*one.expected]
    others = {name: weights_of(name, names) for name in names if name != source}
    unsaid = {n: w.silent + w.doubt * one.expected[n][0][1] for n, w in others.items()}
    silent = sum(unsaid.values())
    own = dict(one.expected[source])
    for name, listed in one.expected.items():
        for token, x in listed:
            if name == source:
                total.setdefault(token, silent)
                continue
            odds, named, *_ = others[name]
            shared.add(token)
            lifted = x + one.lifts.get(token, 0.0)
            total[token] = total.get(token, silent) + odds * lifted + named - unsaid[name]
    rows = [
        [
            own.get(token, 0.0),
            token in own and token in shared,
            token not in own,
            token not in shared,
        ]
        for token in total
    ]
    right = [float(token == one.emitted) for token in total]
    return np.array(rows, dtype=float), np.array([*total.values()]), np.array(right)


def _regression(
    x: NDArray[np.float64], offsets: NDArray[np.float64], right: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weights by Newton's method, with a normal prior."""
    prior = np.array(_PRIOR)
    weights = prior.copy()
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-(x @ weights + offsets)))
        gradient = x.T @ (right - p) - _RIDGE * (weights - prior)
        curvature = (x * (p * (1.0 - p))[:, None]).T @ x + _RIDGE * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def _loss(total: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Mean log-loss in nats."""
    return float(np.logaddexp(0.0, np.where(right > 0, -total, total)).mean())


if __name__ == "__main__":
    benchmark()
