"""Drafting with a model: what all have in common, and those of any tokenizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from tokalign.runtime.draft.growth import Answer
from tokalign.runtime.options import DEFAULT_ALTERNATIVES
from tokalign.runtime.rounds import Context, Drafter, Meanwhile, Proposal, Round, nothing
from tokalign.runtime.translation.base import Asked, Pair, Translation
from tokalign.runtime.translation.by_token import ByToken, ContextWindow, same_tokenizer
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.tables.alignment import Alignment
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.mlx.sampling import Sampling

_ACCEPTANCES = 160
"""Trials that an acceptance looks back on."""

_LATELY, _CHANGE = 16.0, 3.0
"""Older trials are forgotten if the mean of the last 16 is 3 standard errors off. With 2.5,
chance did that within 3,000 drafts in half of the replays, and a model that paid was left."""

_START_WEIGHT = 4.0
"""Trials that the expectation of the first position is worth."""

_ALIKE = 12.0
"""Trials that the mean of all positions after the first is worth at each of them."""

_SPREAD, _USUAL = 0.2, 6.0
"""The standard deviation of the share of right first ids in texts of eight kinds and two languages,
and the trials of one request that what is usual is therefore worth."""


class Acceptance:
    """How often the i-th id of a draft is right if the ids before it are, by position.

    A position with few trials is expected to be as good as all positions after the first together,
    and these as good as the first. So a few unlucky trials at one position do not keep drafts short
    for good.
    start: expected of the first position before any trial. usual: of all requests, what one request
    begins with.
    """

    def __init__(self, *, start: float = 0.5, usual: Acceptance | None = None) -> None:
        self._start, self._usual = start, usual
        self._positions: list[_Position] = []

    def of_request(self) -> Acceptance:
        """That of a new request, which begins with what is usual; itself while nothing is known."""
        return Acceptance(usual=self) if self._positions else self

    def observe(self, proposed: int, accepted: int) -> None:
        """Count a proposal of `proposed` ids whose first `accepted` were accepted."""
        for position in range(min(proposed, accepted + 1)):
            if position == len(self._positions):
                self._positions.append(_Position())
            self._positions[position].observe(position < accepted)

    @property
    def spread(self) -> float:
        """The standard deviation of what is expected of the first position in this request."""
        trials = self._positions[0].trials if self._positions else 0.0
        return _SPREAD * sqrt(_USUAL / (_USUAL + trials))

    def probabilities(self, count: int) -> list[float]:
        """Conditional probabilities of the first `count` positions."""
        if self._usual is not None:
            usual = self._usual.probabilities(count)
            return [self._estimate(i, expected, _USUAL) for i, expected in enumerate(usual)]
        first = self._estimate(0, self._start, _START_WEIGHT)
        trials = sum(position.trials for position in self._positions[1:])
        right = sum(position.right for position in self._positions[1:])
        further = (right + _START_WEIGHT * first) / (trials + _START_WEIGHT)
        return [first, *(self._estimate(i, further, _ALIKE) for i in range(1, count))][:count]

    def _estimate(self, position: int, expected: float, weight: float) -> float:
        if position >= len(self._positions):
            return expected
        seen = self._positions[position]
        return (seen.right + weight * expected) / (seen.trials + weight)


class _Position:
    """The latest trials of one position; fewer of them once the text has changed."""

    __slots__ = ("_lately", "right", "trials")

    def __init__(self) -> None:
        self.trials = self.right = 0.0
        self._lately = 0.0

    def observe(self, right: bool) -> None:
        fading = 1 - 1 / _ACCEPTANCES
        self.trials = self.trials * fading + 1
        self.right = self.right * fading + right
        rate = self.right / self.trials
        step = 1 / min(self.trials, _LATELY)
        self._lately += (right - self._lately) * step
        surprise = abs(self._lately - rate)
        if self.trials > _LATELY and surprise > _CHANGE * sqrt(rate * (1 - rate) / _LATELY):
            self.trials, self.right = _LATELY, _LATELY * self._lately


_LEAST_REACHED = 0.07
"""Divided by the passes, the least probability of being reached for the ids of a tree that nobody
else chooses from: with more passes a round costs more, and a row is a smaller part of it."""


DRAFT, DRAFTER = "draft", "drafter"
"""Kinds of models that draft: with any tokenizer, and trained for the target."""


class ModelDrafter(Drafter):
    """A model that drafts in passes; one object per request.

    kind: `DRAFT` or `DRAFTER`.
    in_one_pass: whether any number of ids takes one pass; `steps` counts ids then.
    steps: passes of a draft where the caller does not choose their number. alternatives: how many
    ids a proposal may have besides one for each pass; 0 for a target that cannot verify a tree.
    """

    kind = DRAFT
    in_one_pass = False

    session: Any  # of a subclass's kind; it counts its passes

    def __init__(self, session: Any, steps: int, alternatives: int) -> None:
        self.session, self.steps, self.alternatives = session, steps, alternatives
        self.wait_for_others: Callable[[], float] = lambda: 0.0
        """Waits for passes of other generations that are under way; returns the seconds it took."""
        self.meanwhile: Meanwhile = nothing
        """What the host does while a pass runs whose end `find` waits for, or before that pass."""
        self.reads_ahead = False
        """Whether the first pass of the latest draft could read what others expect, too."""
        self.read_ahead: TokenTree[TargetId] = EMPTY_TREE
        """What it was given of that; its pass may have had no room for all."""
        self._acceptance = Acceptance()
        self._read = 0
        self._chain: TokenTree[TargetId] = EMPTY_TREE  # that was guessed in this round

    @abstractmethod
    def find(self, context: Context, steps: int) -> Proposal:
        """All that at most `steps` (1 or more) passes find; every id has a probability."""

    def propose(self, context: Context, limit: int) -> Proposal:
        proposal = self.draft(context, steps=self.steps, limit=limit)
        return replace(proposal, tree=self.choose(proposal.tree, limit))

    def choose(self, tree: TokenTree[TargetId], limit: int) -> TokenTree[TargetId]:
        """What to propose of what was found: the chain, and other ids that are probable enough.

        The chain is worth its rows wherever it leads: a target agrees with the draft's most
        probable id more often than the draft's probability says.
        """
        chain, steps = tree.chain_length, min(self.steps, limit)
        if chain == len(tree):
            return tree
        most, least = max(chain, steps + self.alternatives), _LEAST_REACHED / steps
        return tree.most_probable(most, least=least, depth=limit, chain=chain)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        """All that at most `steps` passes find, at most `limit` deep; the caller chooses of it."""
        steps = min(steps, limit)
        if not steps:
            return Proposal()
        passes = self.session.passes
        self._read = len(context.ids)
        found = self.find(context, steps)
        tree = found.tree.most_probable(len(found.tree), least=0.0, depth=limit)
        self._chain = tree.first_chain
        passes = self.session.passes - passes
        return Proposal(tree=tree, draft_passes=passes, counts=found.counts)

    def unread(self, ids: Sequence[TargetId]) -> int:
        """About how many of these ids it has to read before it drafts after them."""
        return max(0, len(ids) - self._read)

    def answer(self, proposal: Proposal) -> Answer:
        """What it found in its latest draft, as a source of a tree."""
        return Answer(proposal.tree)

    def observe(self, round_: Round) -> None:
        """See `rounds.Drafter`. Learn how far the drafted chain was right."""
        chain, self._chain = self._chain, EMPTY_TREE
        if chain:
            right = len(chain.path_of(round_.emitted))
            self._acceptance.observe(min(len(chain), len(round_.emitted)), right)


class NeuralDrafter(ModelDrafter):
    """A draft model guesses `num_draft_tokens` tokens; a translation turns them into target ids."""

    session: DraftModelSession

    def __init__(
        self,
        session: DraftModelSession,
        translation: Translation,
        *,
        num_draft_tokens: int = 3,
        alternatives: int = DEFAULT_ALTERNATIVES,
    ) -> None:
        super().__init__(session, num_draft_tokens, alternatives)
        self._translation = translation
        self._behind: int | None = None  # of the text that it was first asked about
        self.reads_ahead = True  # which the first draft will tell

    def unread(self, ids: Sequence[TargetId]) -> int:
        """See `ModelDrafter.unread`: of a long text a part. What it had not read when it was first
        asked is counted in its own ids if an earlier turn's session goes on. No other text is
        translated before the model drafts, so there, as in what follows, the target's are counted.
        """
        if self._behind is None:
            self._read, held = len(ids), self.session.held
            self._behind = self.session.unread(self._translation.read(ids)) if held else len(ids)
        return self.session.to_read(self._behind + super().unread(ids))

    def find(self, context: Context, steps: int) -> Proposal:
        self.reads_ahead, self.read_ahead, self._behind = False, EMPTY_TREE, 0

        def guesses() -> TokenTree[TargetId]:
            self.reads_ahead, self.read_ahead = True, self.meanwhile(context.ids)
            return self.read_ahead

        asked = Asked(steps, self.alternatives, self._acceptance.probabilities, guesses)
        return self._translation.draft(context.ids, self.session, asked)


def make_translation(
    name: str,
    pair: Pair,
    prompt: Prompt,
    alignment: Callable[[], Alignment],
    sampler: Sampling | None = None,
) -> Translation:
    """The translation `name` for one request. Raises: IncompatibleError if the pair rules it out.

    alignment: gives the pair's tables if the translation needs them.
    sampler: draws the draft's ids; without one, and always in `context`, the draft takes its
    most probable id.
    """
    kind, _, window = name.partition(":")
    if kind == "none":
        return same_tokenizer(pair, sampler)
    if kind == "context":
        return ContextWindow(pair, prompt.draft_text(pair, chunked=True), int(window))
    if kind == "intersection":
        shared = pair.with_roles(alignment().intersection)
        return ByToken(prompt.draft_text(pair), shared, sampler)
    return ExactTranslation(pair, prompt.draft_text(pair), alignment(), sampler=sampler)
