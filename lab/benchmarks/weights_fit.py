"""What the sources of a tree contribute to the log-odds of an id, fitted to what came.

    python -m lab.benchmarks.weights_fit answers ANSWERS --output PLACES [--model MODEL]
        [--dictionary FILE ...] [--numbers 1-4] [--temp 0]
    python -m lab.benchmarks.weights_fit decoded --target MODEL --drafter FOLDER --prompts FILE
        --output PLACES [--rows 8] [--temp 0] [--limit 16]
    python -m lab.benchmarks.weights_fit fit PLACES ... [--kind copy ...]

`answers` reads recorded answers (`recorded_answers.py`) with all free sources, and keeps what each
expected at every place, and at the two ids after it as if they had been drafted. `decoded` decodes
with a trained drafter in one tree with them (`block_tree.py`), and keeps the places that the tree
looked at. `fit` fits the weights and the shifts by rank of all kinds of sources together, or of
those that are named, by logistic regression (Newton's method), held near the present ones. Before
it stands the log-loss of a place: with the present weights, with those fitted to it, and with those
fitted to the other files, which says whether the fit is worth anything. What online learning adds
(`Trust`, `Reliance`) is left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import click
import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.block_tree import ALL, bench_options, open_bench
from lab.benchmarks.free_sources import Draft, costs_of, drafting_for, free_sources
from lab.benchmarks.free_sources import decoded as replayed
from lab.benchmarks.paired_lines import table
from lab.benchmarks.recorded_answers import Answer, chosen_answers
from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft import tree
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.draft.mixing import HEARD, MOST, RECENT, Expected, Mixer
from tokalign.runtime.draft.tree import TreeDrafter
from tokalign.runtime.draft.trust import LEAST, Candidate, Mixing
from tokalign.runtime.draft.weights import MODELS, Weights, kind_of, ranked_priors_of, weights_of
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.tables.token_tree import EMPTY_TREE
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_DEPTHS, _LISTED, _LEAST = 3, 8, -5.3
_RANKS = 4
_RIDGE, _STEPS = 3.0, 30
_ODDS, _NAMED, _SILENT, _ALONE, _DOUBT = range(5)
_WIDTH = len(Weights._fields) + _RANKS

_PATH = click.Path(path_type=Path, exists=True)
_OUTPUT = click.option("--output", type=click.Path(path_type=Path), required=True)

Floats = NDArray[np.float64]


class Place(NamedTuple):
    """What the sources expected at a place, by name, and what was emitted there.

    lifts: the logarithm of the noise that each expected id is chosen with; empty where the target
    decodes greedily. recent: the last ids before it (`mixing.RECENT`).
    """

    expected: Mapping[str, Sequence[tuple[TargetId, float]]]
    lifts: Mapping[TargetId, float]
    emitted: TargetId
    recent: Container[TargetId]


def places_of(answer: Answer, drafting: Drafting) -> Iterator[Place]:
    """All places of an answer, with the free sources that are drafted with."""
    store, ids = LogitStore(drafting.known_rows), [*answer.prompt, *answer.ids]
    drafter = make_drafter(replace(drafting.for_prompt(answer.prompt), logits=store))
    assert isinstance(drafter, TreeDrafter)
    for at in range(len(answer.prompt), len(ids)):
        states = [source.follow(ids[:at]) for source in drafter.sources]
        recent = frozenset(ids[max(0, at - RECENT) : at])
        for token in ids[at : at + _DEPTHS]:
            asked = [*zip(drafter.sources, states, strict=True)]
            expected = {
                source.name: [*said][:_LISTED]
                for source, state in asked
                if state is not None and (said := source.expect(state))
            }
            yield Place(expected, {}, token, recent)
            states = [None if state is None else of.advance(state, token) for of, state in asked]
        row = slice(at - len(answer.prompt), at - len(answer.prompt) + 1)
        store.learn(ids[:at], EMPTY_TREE, answer.likely[row], answer.logprobs[row])


class RecordingMixer(Mixer):
    """A mixer that keeps what it was told at the places that were looked at."""

    def __init__(self, kept: list[Place], mixing: Mixing, names: Sequence[str], *how: Any) -> None:
        super().__init__(mixing, names, *how)
        self._kept, self._named = kept, names
        self._open = list[tuple[Sequence[Candidate], Place]]()  # of which nothing was emitted yet

    def candidates(
        self,
        answers: Sequence[Expected],
        least: float,
        stated: float,
        noise: Sequence[float] | None = None,
        depth: int = 0,
        allows: Callable[[TargetId], bool] | None = None,
        recent: Container[TargetId] = (),
    ) -> tuple[list[Candidate], list[float]]:
        found, chances = super().candidates(answers, least, stated, noise, depth, allows, recent)
        expected = {self._named[place]: listed for place, listed in answers}
        lifts = {}
        if noise is not None:
            lifts = {token: log(noise[token]) for of in expected.values() for token, _ in of}
        place = Place(expected, lifts, TargetId(-1), recent)
        self._open = [*self._open[-64:], (found, place)]
        return found, chances

    def learn(self, candidates: Sequence[Candidate], emitted: TargetId, depth: int = 0) -> None:
        super().learn(candidates, emitted, depth)
        for found, place in self._open:
            if found is candidates and place.expected:
                self._kept.append(place._replace(emitted=emitted))


@contextmanager
def recording(kept: list[Place]) -> Iterator[None]:
    """Trees that draft meanwhile keep their places."""
    with patch.object(tree, "Mixer", partial(RecordingMixer, kept)):
        yield


class _Vote(NamedTuple):
    """A source of this kind named an id at this rank with log-odds x; those of its first id."""

    kind: int
    rank: int
    x: float
    first: float


class Kinds:
    """The kinds of sources at some places, and their weights in one row: those of a kind and its
    shifts by rank, then those of the next one."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.names = sorted({kind_of(name) for place in places for name in place.expected})

    def present(self) -> Floats:
        """The weights that decoding uses."""
        parts = []
        for name in self.names:
            ranks = [*ranked_priors_of(name)] or [0.0] * _RANKS
            parts.append([*weights_of(name), *ranks])
        return np.array(parts, dtype=float).ravel()

    def fitted(self, of: Sequence[str]) -> NDArray[np.intp]:
        """The indices of the weights that are fitted, of these kinds: only copies doubt, and ranks
        are of free sources."""
        wanted = []
        for name in of or self.names:
            own = [_ODDS, _NAMED, _SILENT, _ALONE]
            own += [] if name in MODELS else [*range(_WIDTH - _RANKS, _WIDTH)]
            own += [_DOUBT] if name == "copy" else []
            wanted += [_WIDTH * self.names.index(name) + index for index in own]
        return np.array(wanted)

    def features(self, place: Place) -> tuple[Floats, Floats, Floats]:
        """f[ids, weights] of the ids that were named; f[ids]: which was right, and what the noise
        adds to their log-odds."""
        silent, votes = np.zeros(len(self.names) * _WIDTH), dict[TargetId, list[_Vote]]()
        for name, listed in place.expected.items():
            kind, first = self.names.index(kind_of(name)), listed[0][1]
            silent[_WIDTH * kind + _SILENT] += 1.0
            silent[_WIDTH * kind + _DOUBT] += first
            for rank, (token, x) in enumerate(listed):
                if x >= _LEAST:
                    votes.setdefault(token, []).append(_Vote(kind, min(rank, _RANKS - 1), x, first))
        found = np.tile(silent, (len(votes), 1))
        for row, (token, of) in zip(found, votes.items(), strict=True):
            old = token in place.recent and self._named_by_others(of)
            is_alone = len(of) == 1 and not old
            for vote in of:
                own = row[_WIDTH * vote.kind :][:_WIDTH]
                own[_ODDS] += vote.x
                own[_NAMED] += 1.0
                own[_ALONE] += float(is_alone)
                own[_SILENT] -= 1.0
                own[_DOUBT] -= vote.first
            surest = max(of, key=lambda vote: vote.x)
            row[_WIDTH * surest.kind + _WIDTH - _RANKS + surest.rank] = 1.0
        right = [float(token == place.emitted) for token in votes]
        lifts = [
            HEARD * place.lifts.get(token, 0.0) if self._named_by_others(of) else 0.0
            for token, of in votes.items()
        ]
        return found, np.array(right), np.array(lifts)

    def _named_by_others(self, votes: Sequence[_Vote]) -> bool:
        """Whether any source but models named the id."""
        return any(self.names[vote.kind] not in MODELS for vote in votes)


class Examples(NamedTuple):
    """Ids that were named at so many places, see `Kinds.features`."""

    features: Floats
    right: Floats
    lifts: Floats
    places: int


def examples_of(places: Sequence[Place], kinds: Kinds) -> Examples:
    """The ids of these places."""
    parts = [kinds.features(place) for place in places if place.expected]
    features, right, lifts = (np.concatenate(of) for of in zip(*parts, strict=True))
    return Examples(features, right, lifts, len(places))


def fit_weights(known: Sequence[Examples], prior: Floats, fitted: NDArray[np.intp]) -> Floats:
    """The weights with the least log-loss, held near `prior`. fitted: which ones may move."""
    weights = prior.copy()
    for _ in range(_STEPS):
        slope, bend = _RIDGE * (weights - prior), _RIDGE * np.eye(len(prior))
        for of in known:
            x, chance = of.features, _chances(of, weights)
            slope += x.T @ (chance - of.right)
            bend += (x * (chance * (1 - chance))[:, None]).T @ x
        weights[fitted] -= np.linalg.solve(bend[np.ix_(fitted, fitted)], slope[fitted])
    return weights


def loss(of: Examples, weights: Floats) -> float:
    """Nats a place."""
    chance = np.clip(_chances(of, weights), LEAST, MOST)
    return float(-np.log(np.where(of.right > 0, chance, 1 - chance)).sum() / of.places)


def _chances(of: Examples, weights: Floats) -> Floats:
    odds = np.exp(np.clip(of.features @ weights + of.lifts, -30, 30))
    chances: Floats = odds / (1 + odds)
    return chances


@click.group()
def benchmark() -> None:
    """Fit what sources contribute."""


@benchmark.command()
@click.argument("folder", type=_PATH)
@_OUTPUT
@click.option("--model", help="Its tokenizer; for dictionaries and packs.")
@click.option("--dictionary", "dictionaries", multiple=True, type=_PATH)
@click.option("--numbers", default="1-4", show_default=True, help="Of the prompts of each kind.")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--draft", help="A draft model, computed: keep where trees looked beside it.")
def answers(
    folder: Path,
    output: Path,
    model: str | None,
    dictionaries: Sequence[Path],
    numbers: str,
    temp: float,
    draft: str | None,
) -> None:
    """Keep what the free sources expected in recorded answers."""
    tokenizer: Tokenizer[TargetId] | None = resolve_tokenizer(model).tokenizer if model else None
    chosen, kept = chosen_answers(folder, numbers, temp=temp), list[Place]()
    if draft is None:
        drafting = drafting_for(tokenizer, dictionaries)
        kept += [place for answer in chosen for place in places_of(answer, drafting)]
    elif tokenizer is None:
        raise click.UsageError("--draft needs --model, for its tokenizer")
    else:
        size = 1 + max(int(answer.likely.max()) for answer in chosen)
        beside, costs = Draft(draft, tokenizer, size), costs_of("cpu", 0.12, 0.22)
        drafting = drafting_for(tokenizer, dictionaries, beside.tokenizer)
        way = free_sources(drafting, costs, size, beside)
        with recording(kept):
            for answer in chosen:
                replayed(answer, way, costs)
    _write(output, kept)


@benchmark.command()
@bench_options
@click.option("--rows", type=int, default=8, show_default=True)
@_OUTPUT
def decoded(rows: int, output: Path, **options: Any) -> None:
    """Keep what all sources expected beside a trained drafter."""
    kept: list[Place] = []
    bench = open_bench(**options)
    with recording(kept):
        bench.measure(ALL, rows - 1)
    _write(output, kept)


def _write(path: Path, places: Sequence[Place]) -> None:
    path.write_bytes(pickle.dumps([tuple(place) for place in places]))
    click.echo(f"{len(places)} places")


@benchmark.command()
@click.argument("files", type=_PATH, nargs=-1, required=True)
@click.option("--kind", "kind", multiple=True, help="Fit these alone; repeatable.")
def fit(files: Sequence[Path], kind: Sequence[str]) -> None:
    """Fit the weights."""
    places = [[Place(*one) for one in pickle.loads(path.read_bytes())] for path in files]
    kinds = Kinds([place for one in places for place in one])
    known, prior, fitted = (
        [examples_of(one, kinds) for one in places],
        kinds.present(),
        kinds.fitted(kind),
    )
    weights = fit_weights(known, prior, fitted)
    lines = []
    for n, (path, of) in enumerate(zip(files, known, strict=True)):
        others = fit_weights([*known[:n], *known[n + 1 :]], prior, fitted)
        losses = [f"{loss(of, one):.4f}" for one in (prior, weights, others)]
        lines.append([path.stem, str(of.places), *losses])
    click.echo(table(["", "places", "now", "fitted", "fitted to the others"], lines))
    head = ["", *Weights._fields, *map(str, range(1, 1 + _RANKS))]
    rows = weights.reshape(len(kinds.names), _WIDTH)
    own = [[name, *(f"{x:.2f}" for x in row)] for name, row in zip(kinds.names, rows, strict=True)]
    click.echo(table(head, own))


if __name__ == "__main__":
    benchmark()
