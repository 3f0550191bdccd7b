"""One tree as it grows, best first, from what the sources and the models' answers expect."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Mapping, Sequence
from math import expm1, log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from tokalign.runtime.draft.costs import Plan
from tokalign.runtime.draft.mixing import LEAST_REACHED, MOST, Expected, Mixer
from tokalign.runtime.draft.trust import LEAST, Candidate, Shift
from tokalign.runtime.grammar import State
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree, chain_first
from tokalign.tokenizer.vocabulary import TargetId

_LEAST_OF_CHAIN = 0.02
"""Ids of a chain that are less likely to be reached are not looked at."""

_UNLIKELY = 0.5
"""Where an id would have to be more probable than this to join the tree, none is looked for. That
leaves out a third of the look-ups of a tree of 15 ids (`lab/results/host-time.md`)."""

FORCED = "grammar"
"""The source of ids that a grammar leaves no choice about."""

_UNLEARNED = Shift()

LogProbabilities: TypeAlias = Sequence[tuple[TargetId, float]]
"""Ids, the most probable first, each with its log-probability."""


class Answer:
    """A draft model's answer as one more source. A state is the index of an id of its tree; -1 for
    the text, None after an id that is not in the tree. root: the state of the text so far."""

    def __init__(self, tree: TokenTree[TargetId]) -> None:
        self.root: Any = -1
        self.name = tree.sources[0] if tree else "draft"
        self._expected: dict[Any, list[tuple[TargetId, float]]] = {}
        self._next: dict[tuple[int, TargetId], int] = {}
        for index, (token, parent, probability) in enumerate(
            zip(tree.ids, tree.parents, tree.probabilities, strict=True)
        ):
            self._expected.setdefault(parent, []).append((token, log_odds(probability)))
            self._next.setdefault((parent, token), index)
        for siblings in self._expected.values():  # a tree has them in any order
            siblings.sort(key=itemgetter(1), reverse=True)

    def expect(self, state: Any) -> Sequence[tuple[TargetId, float]]:
        return self._expected.get(state, ())

    def after(self, state: Any, token: TargetId) -> Any:
        """The state after one more id."""
        return self._next.get((state, token))

    def follow(self, ids: Sequence[TargetId]) -> None:
        """These ids were emitted; what it still says is a guess at the next answer."""
        for token in ids:
            self.root = None if self.root is None else self.after(self.root, token)


class BlockAnswer(Answer):
    """A block drafter's answer: distributions of the coming positions, whatever comes between.

    A state is the position of the last id, -1 for the text, and that id if the block knows what
    comes after it. So where another source knows a path, the block's probabilities join it at every
    depth, on every branch. Few trees reach the last positions, so log-odds are computed where they
    are asked for.
    positions: for each position its most probable ids. links: for each position but the last, those
    of the next one after some of its ids; empty if none are known.
    """

    def __init__(
        self,
        positions: Sequence[LogProbabilities],
        name: str,
        links: Sequence[Mapping[TargetId, LogProbabilities]],
    ) -> None:
        super().__init__(EMPTY_TREE)
        self.root, self.name = (-1, None), name
        self._positions, self._links = positions, links

    def expect(self, state: tuple[int, TargetId | None]) -> Sequence[tuple[TargetId, float]]:
        if (known := self._expected.get(state)) is None:
            position, token = state
            listed: LogProbabilities = self._positions[position + 1] if self._positions else ()
            listed = listed if token is None else self._links[position][token]
            known = [(token, _odds_of_log(logprob)) for token, logprob in listed]
            self._expected[state] = known
        return known

    def after(
        self, state: tuple[int, TargetId | None], token: TargetId
    ) -> tuple[int, TargetId | None] | None:
        position = state[0] + 1
        if position + 1 >= len(self._positions):
            return None
        return position, token if self._links and token in self._links[position] else None


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), where p is kept away from 0 and 1."""
    kept = min(max(probability, LEAST), 1.0 - LEAST)
    return log(kept / (1.0 - kept))


_LEAST_LOGPROB, _MOST_LOGPROB = log(LEAST), log(1.0 - LEAST)


def _odds_of_log(logprob: float) -> float:
    """The same of the probability with this logarithm."""
    kept = _LEAST_LOGPROB if logprob < _LEAST_LOGPROB else min(logprob, _MOST_LOGPROB)
    return kept - log(-expm1(kept))


class AskedText:
    """A text that begins with the committed one: what the sources expect after it, once asked.

    Growing a tree a second time in one round asks nothing twice.
    states: by reader (`TreeDrafter`); None for one that is not to be asked. expected: see
    `Mixer.ask`.
    """

    __slots__ = ("expected", "following", "states")

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = states
        self.expected: list[Expected] | None = None
        self.following: dict[TargetId, AskedText] = {}


class Committed(NamedTuple):
    """The text that a tree grows after.

    noise, recent: as of `Mixer.candidates`, the former by depth, as far as it is known. rule: its
    state in the grammar that the output follows, if there is one.
    """

    place: AskedText
    noise: Sequence[Sequence[float]] = ()
    rule: State | None = None
    recent: Container[TargetId] = ()


class Growth:
    """A tree of at most `limit` ids that grows best-first.

    Index 0 of the private lists is the text, and i + 1 the id at index i: a round makes too many
    nodes for objects of a class.
    advances: by reader, from the state of a text to that of one with one more id. answers: of
    models, whose places follow those of the sources.
    """

    def __init__(
        self,
        mixer: Mixer,
        advances: Sequence[Callable[[Any, TargetId], Any]],
        text: Committed,
        limit: int,
        answers: Sequence[Answer],
    ) -> None:
        place, self._noise, rule, self._recent = text
        self._mixer, self._limit, self._advances, self._answers = mixer, limit, advances, answers
        # The ids that may still join the tree, the most probable first; ties go to the first found.
        self._frontier: list[tuple[float, int, int, Candidate, float]] = []
        self._found = 0
        self.ids: list[TargetId] = []
        self.parents: list[int] = []
        self.names: list[str] = []
        self.probabilities: list[float] = []
        self._places: list[AskedText | None] = [place]
        self._answered: list[Sequence[Any]] = [[answer.root for answer in answers]]
        self._depths, self._reached, self._rules = [0], [1.0], [rule]
        self._candidates: list[Sequence[Candidate]] = []
        self._seen: int | None = -1  # the last id of the tree that was emitted
        self._expand(0)

    def _expand(self, node: int) -> None:
        """Find what may follow the text (0) or the id at index `node - 1`."""
        frontier, room, before = self._frontier, self._limit - len(self.ids), self._reached[node]
        least = -frontier[room - 1][0] if 0 < room <= len(frontier) else LEAST_REACHED
        if not room or least > _UNLIKELY * before:
            self._candidates.append(())
            return
        rule, depth = self._rules[node], self._depths[node]
        found: Sequence[Candidate]
        if rule is not None and rule.forced:  # nothing is learned from what is certain
            found, chances = [(rule.forced[0], MOST, FORCED, _UNLEARNED, _UNLEARNED, 0.0)], [MOST]
            self._candidates.append(())
        else:
            found, chances = self._mixer.candidates(
                self._expected(node),
                least / before,
                LEAST_REACHED / before,
                self._noise[depth] if depth < len(self._noise) else None,
                depth,
                None if rule is None else rule.allows,
                self._recent,
            )
            self._candidates.append(found)
        for candidate, chance in zip(found, chances, strict=True):
            reached = before * chance
            if reached >= least:
                self._found += 1
                insort(frontier, (-reached, self._found, node, candidate, chance))
        del frontier[room:]

    def _expected(self, node: int) -> Sequence[Expected]:
        """What every source expects after a node; the models' answers last."""
        place = self._place(node)
        if place.expected is None:
            place.expected = self._mixer.ask(place.states)
        if not self._answers:
            return place.expected
        found = [*place.expected]
        states = zip(self._answers, self._answered[node], strict=True)
        for place_of_answer, (answer, state) in enumerate(states, self._mixer.asked):
            if state is not None and (own := answer.expect(state)):
                found.append((place_of_answer, own))
        return found

    def _place(self, node: int) -> AskedText:
        """The place of a node. An id after which nothing is looked for needs none."""
        if (place := self._places[node]) is None:
            token, before = self.ids[node - 1], self._place(self.parents[node - 1] + 1)
            place = before.following.get(token)
            if place is None:
                states = []
                for advance, state in zip(self._advances, before.states, strict=True):
                    states.append(None if state is None else advance(state, token))
                place = before.following[token] = AskedText(states)
            self._places[node] = place
        return place

    def next_reached(self) -> float:
        """How likely the next id is to be reached; 0 if the sources know no more."""
        return -self._frontier[0][0] if self._frontier else 0.0

    def grow(self) -> None:
        negative, _, parent, (token, _, name, *_), chance = self._frontier.pop(0)
        self.ids.append(token)
        self.parents.append(parent - 1)
        self.names.append(name)
        self.probabilities.append(chance)
        self._reached.append(-negative)
        self._depths.append(self._depths[parent] + 1)
        rule, answered = self._rules[parent], list[Any]()
        self._rules.append(None if rule is None else rule.advance(token))
        for answer, state in zip(self._answers, self._answered[parent], strict=True):
            answered.append(None if state is None else answer.after(state, token))
        self._answered.append(answered)
        self._places.append(None)
        self._expand(len(self.ids))

    def learn(self, emitted: Sequence[TargetId]) -> None:
        """Compare what was expected with the emitted ids, as far as these follow the tree."""
        for token in emitted:
            if self._seen is None:
                return
            node = self._seen + 1
            self._mixer.learn(self._candidates[node], token, self._depths[node])
            before, self._seen = self._seen, None
            for index, parent in enumerate(self.parents):
                if parent == before and self.ids[index] == token:
                    self._seen = index
                    break

    def best_tree(
        self, times: Sequence[float], *, all_rows: bool, over: float = 0.0
    ) -> tuple[TokenTree[TargetId], Plan]:
        """Grow as long as a further row may pay. Returns: the part with the best rate, its plan.

        times: of rounds that propose 0, 1, 2, ... ids. all_rows: as many ids as there are times,
        whatever they cost. over: as of `TreeDrafter.offer`.
        """
        tokens, rate, best = 1.0, 1.0 / times[0], (0, 1.0)
        for count in range(1, len(times)):
            reached = self.next_reached()
            least = max(rate, over) if best[0] else rate
            if not (reached and (all_rows or _may_pay(tokens, reached, least, times[count:]))):
                break
            self.grow()
            tokens += reached
            if all_rows or tokens / times[count] > rate:
                best, rate = (count, tokens), tokens / times[count]
        count, tokens = best
        return self.first(count), Plan(count, rate, tokens)

    def best_chain(self, times: Sequence[float]) -> tuple[TokenTree[TargetId], Plan]:
        """The branch with the best expected rate, or its part with that rate. times: as of
        `best_tree`."""
        while self.next_reached() > _LEAST_OF_CHAIN and len(self.ids) < self._limit:
            self.grow()
        tokens = [1.0]
        best, plan = 0, Plan(0, 1.0 / times[0])
        for index, parent in enumerate(self.parents, start=1):
            tokens.append(tokens[parent + 1] + self._reached[index])
            depth = self._depths[index]
            if depth < len(times) and tokens[-1] / times[depth] > plan.rate:
                best, plan = index, Plan(depth, tokens[-1] / times[depth], tokens[-1])
        whole = self._whole
        return whole.select(whole.path_to(best - 1)), plan

    def first(self, count: int) -> TokenTree[TargetId]:
        """The first `count` ids as a tree, the most probable chain first."""
        chain, others = chain_first(self.parents, range(count))
        whole = self._whole
        return whole.select(chain + others) if others or count < len(self.ids) else whole

    @property
    def _whole(self) -> TokenTree[TargetId]:
        return TokenTree(
            tuple(self.ids), tuple(self.parents), tuple(self.names), tuple(self.probabilities)
        )


def _may_pay(tokens: float, reached: float, rate: float, times: Sequence[float]) -> bool:
    """Whether any number of further ids, none likelier to be reached, can raise the rate."""
    for time in times:
        tokens += reached
        if tokens > rate * time:
            return True
    return False
