"""One probability for each id that several sources expect.

At a node every source that knows something names ids with their log-odds x. The log-odds of an id
are the sum of what each source contributes: `odds * x + named` if it names the id, `silent` if it
names others only, and of a copy the less, the surer it is of another one. These weights
(`weights.py`) hold for usual text, and for trained drafters that are alike, so two things are
learned. `Reliance` is how far a trained drafter's weights hold. `Trust` shifts the result by what
has come in the same *situation*: which sources named the id, which others named something, and
about how likely that made it. A second shift is learned by the source that is surest of the id,
the rank of the id there and its depth in the tree; it starts from what was fitted with the weights.
Source: logistic mixing of context-mixing compressors (Mahoney, "Adaptive weighing of context models
for lossless data compression", 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from math import exp, log
from operator import sub
from typing import Any, Protocol, TypeAlias

from tokalign.runtime.draft.trust import (
    DEEPEST,
    LAST_RANK,
    RANKED,
    Candidate,
    Mixing,
    Reliance,
    Shift,
)
from tokalign.runtime.draft.weights import ALONE, MODELS, TRAINED, USELESS, Weights, weights_of
from tokalign.runtime.rounds import UNBOUNDED
from tokalign.tokenizer.vocabulary import TargetId

RECENT = 64
"""How many of the last ids of a text are recent: one of them that a free source names alone is
trusted as if others named it. With 32 or 128 the weights fit less well."""

LEAST_REACHED = 0.003
"""Ids that are less likely to be reached are not looked at."""


class Source(Protocol):
    """Says what it expects after any text, in microseconds.

    A state stands for a text: the committed one, or that and a path of the tree. `None` stands for
    one about which the source is not to be asked.
    """

    @property
    def name(self) -> str:
        """What it is called in statistics, and what trust in it is learned by."""

    def follow(self, ids: Sequence[TargetId]) -> Any:
        """Read on in the committed text, and return its state.

        ids: all of it; it only grows from call to call.
        """

    def advance(self, state: Any, token: TargetId) -> Any:
        """The state after one more id."""

    def expect(self, state: Any) -> Sequence[tuple[TargetId, float]] | None:
        """Ids that may come next, and the log-odds ln(p / (1 - p)) of each, the best guess first.

        They are looked at in this order, up to the first that is too improbable. A dictionary names
        those of shorter contexts last, though some of them are likelier: sorting them gains nothing
        (`lab/results/host-time.md`). None or an empty sequence where it knows nothing.
        """


_SUREST, _LEAST_SURE = 4, -5
"""Log-odds beyond these are one situation."""

Expected: TypeAlias = tuple[int, Sequence[tuple[TargetId, float]]]
"""The place of a source among all, and what it expects (`Source.expect`)."""

Ask: TypeAlias = Callable[[Any], Sequence[tuple[TargetId, float]] | None]
"""See `Source.expect`."""

_Contribution: TypeAlias = tuple[int, float, float, tuple[float, float]]
"""The bit of a source, what it adds to an id that it does not name and for each unit of the
log-odds of its first one, and for an id that it names the factor of its log-odds and what is added
beyond that."""

_Relied: TypeAlias = tuple[list[_Contribution], dict[int, float], tuple[float, float, float, float]]
"""All contributions, what is added to ids that only one source names, by its bit, and the slopes in
the reliance: of the trained drafter's log-odds, of ids that it names, of those that it does not,
and of those that it alone names."""

_LIFT = 2.0
"""Log-odds that the noise is expected to lift an improbable id by, at most."""

MOST = 0.995
"""The most that an id may be expected; see `LEAST`."""

HEARD = 0.4
"""The exponent of the noise that a choice is predicted with. 1 would hold if what the sources state
were the target's own probabilities; 0 if they said how often the target is sure of what."""

_LEAST_OTHERS = 0.02
"""The least probability that the ids have that nobody named."""


class Mixer:
    """Mixes what the sources of one request expect. Cost: about 10 µs a node.

    names: of the sources. asked: the function of each that says what it expects after a state, and
    the index of the reader that the state is of. Models, which are not `asked`, come last.
    size: how many ids the target has; sources may know more, which are passed over.
    """

    def __init__(
        self,
        mixing: Mixing,
        names: Sequence[str],
        asked: Sequence[tuple[Ask, int]],
        size: int = UNBOUNDED,
    ) -> None:
        self._size, self._asked, self.asked = size, asked, len(asked)
        self._trust = mixing.trust(tuple(names))
        self._names, self._sources = names, list[_Contribution]()
        self._alone = dict[int, float]()  # by the bit of the source that names an id alone
        self._models = 0  # their bits
        self._trained, self._reliance = -1, list[Reliance]()
        self._relied: dict[int, tuple[float, _Relied]] = {}  # by depth, of which reliance
        for place, name in enumerate(names):
            own = weights_of(name) if len(names) > 1 else ALONE
            self._sources.append(
                (1 << place, own.silent, own.doubt, (own.odds, own.named - own.silent))
            )
            self._alone[1 << place] = own.alone
            if name in MODELS:
                self._models |= 1 << place
            if name in TRAINED and len(names) > 1:
                self._trained, self._reliance = place, mixing.reliance[name]
                self._slopes = Weights(*map(sub, weights_of(name), USELESS))

    def ask(self, states: Sequence[Any]) -> list[Expected]:
        """What every source expects. states: by reader; None for one that is not to be asked."""
        found = []
        for place, (expect, reader) in enumerate(self._asked):
            state = states[reader]
            if state is not None and (expected := expect(state)):
                found.append((place, expected))
        return found

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
        """The ids that may come next with a probability of at least `least`, in no order.

        Returns: them, and their probabilities given the noise. Where that is known, less probable
        ones are among them: to learn only from those that the noise lifts would be biased.

        answers: of the sources that expect anything. stated: what a source finds less probable than
        this is not looked at. noise: e to the noise that the target will choose with, by id, where
        it samples and that is known. A model's probabilities already include it, so if a model
        answers, the log-odds of what other sources name grow by it (`HEARD`).
        depth: how many ids of the tree come before. allows: whether an id may come at all.
        recent: the last ids of the text, `RECENT` of them.
        """
        floor = log(least / (1.0 - least)) if least < 1 else 0.0
        lowest = log(stated / (1.0 - stated)) if stated < 1 else 0.0
        votes: dict[TargetId, tuple[int, float, float, int, int, float]] = {}
        seen = votes.get
        asked, silent_odds, silent_slope, size = 0, 0.0, 0.0, self._size
        sources, trained, only = self._sources, self._trained, 0
        alone, odds_slope, named_slope, alone_slope = self._alone, 0.0, 0.0, 0.0
        for place, expected in answers:
            if place == trained:
                sources, alone, slopes = self._relied_on(depth)
                only = 1 << trained
                odds_slope, named_slope, silent_slope, alone_slope = slopes
            bit, silent, doubt, _ = sources[place]
            asked |= bit
            silent_odds += silent + doubt * expected[0][1]
        models = asked & self._models
        for place, expected in answers:
            bit, _, doubt, (odds, lift) = sources[place]
            lift -= doubt * expected[0][1]
            for rank, (token, x) in enumerate(expected):
                if x < lowest:  # nor are the next ones looked at
                    break
                vote = seen(token)
                if vote is None and (token >= size or (allows is not None and not allows(token))):
                    continue
                slope = odds_slope * x + named_slope if place == trained else 0.0
                if vote is None:
                    votes[token] = bit, odds * x + lift, x, place, rank, slope
                else:
                    before, total, surest, by, at, so_far = vote
                    if x > surest:
                        surest, by, at = x, place, rank
                    total += odds * x + lift
                    votes[token] = before | bit, total, surest, by, at, so_far + slope
        found: list[Candidate] = []
        shifts, names = self._trust.of, self._names
        model_alone = models == asked
        lifts = noise if models else None
        if noise is not None and not models:
            floor -= _LIFT
        level = RANKED + (depth if depth < DEEPEST else DEEPEST)
        for token, (voters, total, surest, by, rank, slope) in votes.items():
            if voters & models or token not in recent:
                total += alone.get(voters, 0.0)
                if voters == only:
                    slope += alone_slope
            total = surest if model_alone else total + silent_odds
            if lifts is not None and voters & ~models:
                total += HEARD * log(lifts[token])
            if total < floor:
                continue
            sure = (
                _SUREST if total > _SUREST else int(total) if total > _LEAST_SURE else _LEAST_SURE
            )
            situation = shifts[voters, asked, sure]
            ranked = shifts[by, rank if rank < LAST_RANK else LAST_RANK, level]
            factor = situation.factor * ranked.factor
            slope = 0.0 if model_alone else slope + silent_slope
            probability = factor / (factor + exp(-total))
            found.append((token, probability, names[by], situation, ranked, slope))
        if noise is None or models:
            return found, [candidate[1] for candidate in found]
        return found, given_noise(found, noise)

    def _relied_on(self, depth: int) -> _Relied:
        """What the sources contribute at a depth where the trained drafter answers."""
        depth = depth if depth < DEEPEST else DEEPEST
        value, known = self._reliance[depth].value, self._relied.get(depth)
        if known is None or known[0] != value:
            slopes, place = self._slopes, self._trained
            own = Weights(*[a + value * b for a, b in zip(USELESS, slopes, strict=True)])
            sources = [*self._sources]
            sources[place] = 1 << place, own.silent, 0.0, (own.odds, own.named - own.silent)
            alone = {**self._alone, 1 << place: own.alone}
            lift = slopes.named - slopes.silent
            weights = sources, alone, (slopes.odds, lift, slopes.silent, slopes.alone)
            known = self._relied[depth] = value, weights
        return known[1]

    def learn(self, candidates: Sequence[Candidate], emitted: TargetId, depth: int = 0) -> None:
        """`emitted` was emitted where `candidates` were predicted. depth: as of `candidates`."""
        if self._reliance:
            self._reliance[depth if depth < DEEPEST else DEEPEST].learn(candidates, emitted)
        guesses: list[tuple[float, Shift, bool]] = []
        for token, probability, _, situation, ranked, _ in candidates:
            right = token == emitted
            guesses += (probability, situation, right), (probability, ranked, right)
        self._trust.learn(guesses)


def given_noise(candidates: Sequence[Candidate], noise: Sequence[float]) -> list[float]:
    """Their probabilities of being chosen, now that the noise is known.

    The target chooses the largest of log-probability plus Gumbel noise (`mlx/noise.py`). If these
    were the target's own probabilities, one id would be certain to win. They differ by an error,
    which is taken to be Gumbel noise too, as in `Sampling.expect`. The noise of the ids that nobody
    named is not looked at; with its quantiles instead of its mode no more was accepted.
    """
    scores = [candidate[1] * noise[candidate[0]] ** HEARD for candidate in candidates]
    others = max(_LEAST_OTHERS, 1.0 - sum([candidate[1] for candidate in candidates]))
    share = 1.0 / (sum(scores) + others)
    return [chance if (chance := score * share) < MOST else MOST for score in scores]
