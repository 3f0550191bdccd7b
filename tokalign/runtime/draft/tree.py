"""The tree of one round: every source says what it expects, and the best tree of it all is grown.

The tree grows one id at a time, always by the id that is most probably reached. At each node the
sources are asked what may follow, and `mixing.py` makes one probability of what they say. Growth
ends where no further row can bring more than it costs; the part of the tree with the best expected
rate is proposed. Where one source ends, another goes on, because all are asked at every node.

The controller asks the free sources first. If a draft model drafts too, its answer joins theirs as
one more source: the tree is grown again from what they have said already, which is kept by path.
While a trained drafter's pass runs, they are asked ahead along the paths that the tree may have.
Source: best-first growth after OPT-Tree (Wang et al., 2024) and SuffixDecoding (Oliaro et al.,
2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokalign.runtime.draft.costs import Costs, Plan
from tokalign.runtime.draft.growth import Answer, AskedText, Committed, Growth
from tokalign.runtime.draft.mixing import RECENT, Mixer, Source
from tokalign.runtime.draft.trust import Mixing
from tokalign.runtime.grammar import Constraint
from tokalign.runtime.rounds import UNBOUNDED, Context, Drafter, Proposal, Round
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.noise import NoiseAhead

MOST_READ, _LEAST_READ = 5, 0.1
"""How many ids of the sources a draft model may read, and how probable each of them has to be. With
the end of the text they make a pass of eight rows (`translation/read_ahead.py`)."""

FREE_ROWS = Costs(rows=(1.0,))
"""Costs under which any number of rows takes one pass, as emulators count."""


class TreeDrafter(Drafter):
    """Proposes the best tree of all its sources, by expected tokens per time.

    One object serves one request.
    costs: of passes, where nobody else gives them. max_tokens: the most ids of a proposal. rows:
    propose so many, whatever they cost; fewer only where the sources know no more. branches:
    whether a proposal may be a tree; else it is a chain.
    mixing: what was learned about sources; requests may share it.
    noise: of the coming choices, where the target samples.
    constraint: the grammar that the output follows. What it forbids is not proposed, and what it
    forces is, as a chain.
    size: how many ids the target has.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        noise: NoiseAhead | None = None,
        costs: Costs = FREE_ROWS,
        max_tokens: int = 8,
        rows: int | None = None,
        branches: bool = True,
        mixing: Mixing | None = None,
        constraint: Constraint | None = None,
        size: int = UNBOUNDED,
    ) -> None:
        self.sources: tuple[Source, ...] = tuple(sources)
        # Sources that read a text alike, such as those of one store, share their states.
        self._readers = list({source.advance: source for source in sources}.values())
        self._advances = [source.advance for source in self._readers]
        self._read_by = [self._advances.index(source.advance) for source in sources]
        self.rows, self.most = rows, rows or max_tokens
        self._costs, self._branches, self._noise = costs, branches, noise
        self._constraint = constraint
        self._mixing, self._size = mixing or Mixing(), size
        self._mixers: dict[tuple[str, ...], Mixer] = {}  # by the names of the models that answer
        self._at = -1  # how many ids the following is known after
        self._text = Committed(AskedText(()))
        self._growth: Growth | None = None
        self._emitted: list[TargetId] = []  # that nothing was learned from yet
        self._answers: Sequence[Answer] = ()  # the latest ones
        self._joined = MOST_READ  # ids of the latest tree that these joined

    @property
    def can_offer(self) -> bool:
        """Whether it can ever propose anything by itself."""
        return bool(self.sources) or self._constraint is not None

    @property
    def has_read(self) -> bool:
        """Whether the sources have read the text: all of a prompt at once, so later reading takes
        little time."""
        return self._at >= 0

    def propose(self, context: Context, limit: int) -> Proposal:
        most = min(limit, self.most)
        tree, _ = self.offer(context.ids, limit, self._costs.by_proposed(most))
        return Proposal(tree=tree)

    def observe(self, one: Round) -> None:
        """Compare what was expected with the emitted ids: before the next tree, so that the pass of
        a drafter may run by then, or now if there is none."""
        self._emitted += one.emitted
        if one.ends is not None:
            self._learn()

    def _learn(self) -> None:
        if self._growth is not None:
            self._growth.learn(self._emitted)
        for answer in self._answers:
            answer.follow(self._emitted)
        self._emitted = []

    def ask_ahead(self, ids: Sequence[TargetId]) -> TokenTree[TargetId]:
        """Ask the sources about the paths that a tree after `ids` may have, while a model drafts.

        The tree is grown from what is left of the latest answers. Of 9 or 10 nodes that are looked
        at when the answer is there, 6 have been asked then (`lab/results/host-time.md`).
        Returns: its ids that are most probably reached, for a draft model to read.
        """
        self._read(ids)
        growth = self._grow(self._text, self._joined, self._answers)
        likely = 0
        while growth.next_reached() and len(growth.ids) < self._joined:
            likely += likely < MOST_READ and growth.next_reached() >= _LEAST_READ
            growth.grow()
        return growth.first(likely)

    def offer(
        self,
        ids: Sequence[TargetId],
        limit: int,
        times: Sequence[float],
        *,
        answers: Sequence[Answer] = (),
        alone: bool = False,
        quick: bool = False,
        over: float = 0.0,
    ) -> tuple[TokenTree[TargetId], Plan]:
        """The best tree after `ids`, and its rate.

        times: of rounds that propose 0, 1, ..., `limit` ids.
        answers: of models. alone: without the free sources.
        Where they know too little to offer anything, the model is right more often than a mixture
        that holds their silence against it.
        quick: without the noise of the choices. over: only a better rate is of use; of a tree that
        cannot reach it, no more than a part is grown.
        """
        self._read(ids, quick=quick)
        limit = min(limit, self.most)
        text = self._text
        if alone:
            text = text._replace(place=AskedText([None] * len(self._readers)))
        # A chain is the best branch of a tree of twice as many ids.
        growth = self._growth = self._grow(text, limit if self._branches else 2 * limit, answers)
        times = times[: 1 + limit]
        if self._branches:
            found = growth.best_tree(times, all_rows=self.rows is not None, over=over)
        else:
            found = growth.best_chain(times)
        if answers:
            self._answers, self._joined = answers, max(1, len(growth.ids))
        return found

    def _read(self, ids: Sequence[TargetId], *, quick: bool = False) -> None:
        """Read on in the text, and learn from it. quick: as of `offer`."""
        if self._emitted:
            self._learn()
        if self._at != len(ids):
            self._at = len(ids)
            place = AskedText([source.follow(ids) for source in self._readers])
            noise = () if quick or self._noise is None else self._noise.rows(len(ids))
            rule = None if self._constraint is None else self._constraint.after(ids)
            self._text = Committed(place, noise, rule, frozenset(ids[-RECENT:]))

    def _grow(self, text: Committed, limit: int, answers: Sequence[Answer]) -> Growth:
        mixer = self._mixer(tuple([answer.name for answer in answers]))
        return Growth(mixer, self._advances, text, limit, answers)

    def _mixer(self, answering: tuple[str, ...]) -> Mixer:
        """Mixes the sources and the answers with these names."""
        if answering not in self._mixers:
            names = [*[source.name for source in self.sources], *answering]
            asked = zip([source.expect for source in self.sources], self._read_by, strict=True)
            self._mixers[answering] = Mixer(self._mixing, names, [*asked], self._size)
        return self._mixers[answering]
