"""Weights and priors of the free sources, fitted to recorded answers.

    python -m lab.benchmarks.priors_fit ANSWERS [--numbers 1-4]

At every place of an answer, and at the two ids after it as if they had been drafted, copy and the
target's logits say what they expect. A logistic regression gives their weights and shifts by rank;
the slopes of logits and the ranks of copy are left as they are. It knows neither dictionaries nor
`doubt`, so the weights of `draft/weights.py` are those of another program.
The log-loss of a place, with the present weights and with those fitted to the other half of the
prompts, says whether a fit is worth anything: what was fitted and what is measured differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.recorded_answers import Answer, chosen_answers, numbers_of
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.lookup import LogitStore, logit_sources
from tokalign.runtime.draft.mixing import Source
from tokalign.runtime.draft.weights import ranked_priors_of, weights_of
from tokalign.tables.token_tree import EMPTY_TREE

NAMES = "copy", "logits:3", "logits:2", "logits:1"
_RANKS, _DEPTHS, _LISTED, _LEAST = 4, 3, 8, -5.3
_RIDGE, _STEPS = 3.0, 30
_FIXED = [*range(3, 12, 3), *range(12, 16)]
"""Slopes of logits and ranks of copy among the weights: odds, named, silent of every source, then
the shifts of its ranks."""

Floats = NDArray[np.float64]


class Places(NamedTuple):
    """Ids that sources named at so many places: features f[ids, weights], and which were right."""

    features: Floats
    right: Floats
    places: int


def places_of(answers: Sequence[Answer]) -> Places:
    """All places of these answers."""
    features, right, count = [], [], 0
    for answer in answers:
        for expected, token in _expected(answer):
            count += 1
            votes: dict[int, dict[int, tuple[float, int]]] = {}
            for place, listed in expected.items():
                for rank, (named, odds) in enumerate(listed):
                    if odds >= _LEAST:
                        votes.setdefault(named, {})[place] = odds, min(rank, _RANKS - 1)
            for named, by_source in votes.items():
                features.append(_features(expected, by_source))
                right.append(named == token)
    return Places(np.array(features), np.array(right, dtype=float), count)


def _expected(answer: Answer) -> Iterator[tuple[dict[int, Sequence[tuple[int, float]]], int]]:
    """What each source expects at a place, and the id that came."""
    store, ids = LogitStore(), [*answer.prompt, *answer.ids]
    sources: list[Source] = [ContextCopy(), *logit_sources(store)]
    for at in range(len(answer.prompt), len(ids)):
        states = [source.follow(ids[:at]) for source in sources]
        for token in ids[at : at + _DEPTHS]:
            said = [source.expect(state) for source, state in zip(sources, states, strict=True)]
            yield {n: list(of)[:_LISTED] for n, of in enumerate(said) if of}, token
            states = [s.advance(state, token) for s, state in zip(sources, states, strict=True)]
        row = slice(at - len(answer.prompt), at - len(answer.prompt) + 1)
        store.learn(ids[:at], EMPTY_TREE, answer.likely[row], answer.logprobs[row])


def _features(expected: Iterable[int], votes: dict[int, tuple[float, int]]) -> Floats:
    found = np.zeros(len(NAMES) * (3 + _RANKS))
    for place in expected:
        if place in votes:
            found[3 * place : 3 * place + 2] = votes[place][0], 1.0
        else:
            found[3 * place + 2] = 1.0
    surest = max(votes, key=lambda place: votes[place][0])
    found[3 * len(NAMES) + _RANKS * surest + votes[surest][1]] = 1.0
    return found


def present() -> Floats:
    """The weights that decoding uses."""
    ranks = [ranked_priors_of(name) or (0.0,) * _RANKS for name in NAMES]
    return np.array([*(x for name in NAMES for x in weights_of(name)[:3]), *np.ravel(ranks)])


def fitted(places: Places, prior: Floats) -> Floats:
    """The weights with the least log-loss, held near `prior` (Newton's method)."""
    free = np.setdiff1d(np.arange(len(prior)), _FIXED)
    weights, x = prior.copy(), places.features
    for _ in range(_STEPS):
        chance = _chances(x, weights)
        slope = x.T @ (chance - places.right) + _RIDGE * (weights - prior)
        bend = (x * (chance * (1 - chance))[:, None]).T @ x + _RIDGE * np.eye(len(prior))
        weights[free] -= np.linalg.solve(bend[np.ix_(free, free)], slope[free])
    return weights


def _chances(features: Floats, weights: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
    return chances


def loss(places: Places, weights: Floats) -> float:
    """Nats a place."""
    chance = np.clip(_chances(places.features, weights), 0.005, 0.995)
    wrong = np.where(places.right > 0, chance, 1 - chance)
    return float(-np.log(wrong).sum() / places.places)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--numbers", default="1-4", show_default=True, help="Of the prompts of each kind.")
def main(folder: Path, numbers: str) -> None:
    """Print the weights, and what they are worth on prompts that they were not fitted to."""
    wanted, answers = numbers_of(numbers), chosen_answers(folder, numbers)
    middle, prior = wanted[len(wanted) // 2], present()
    halves = [
        places_of([one for one in answers if (one.number < middle) == low]) for low in (True, False)
    ]
    for own, other in (halves, halves[::-1]):
        print(f"{loss(other, prior):.3f} now, {loss(other, fitted(own, prior)):.3f} nats a place")
    weights = fitted(places_of(answers), prior)
    for place, name in enumerate(NAMES):
        ranks = weights[12 + _RANKS * place :][:_RANKS]
        print(name, np.round(weights[3 * place :][:3], 2), "ranks", np.round(ranks, 2))


if __name__ == "__main__":
    main()
