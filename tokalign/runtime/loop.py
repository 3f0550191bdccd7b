"""The decode loop: propose, verify, commit; the limits that end it, and the target that verifies.

It knows two collaborators and one context, and tells the drafter what became of every round. It
never asks for a rollback: sessions compare the committed context with their caches and trim these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.grammar import Constraint
from tokalign.runtime.rounds import (
    UNBOUNDED,
    Array,
    Context,
    Drafter,
    Event,
    Finished,
    FinishReason,
    Proposal,
    Reading,
    Round,
    RowStore,
    Started,
    Verdict,
    Verifier,
)
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampler
    from tokalign.runtime.mlx.session import TargetModelSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one generation.

    max_tokens: output tokens; None for no bound. context_length: prompt and output together.
    stop_ids: the first of them in the output is emitted and ends it.
    completes_stop: whether an id completes a stop string, which makes it the last one of the
    output; asked once for every id, in order.
    target: the session that verifies.
    drafts_last_id: propose even the last id that may be emitted. That costs a row and saves no
    pass, but mlx-lm does it, and says which tokens were drafted.
    stops: numbers of ids of the prompt after which reading it pauses.
    """

    max_tokens: int | None
    context_length: int = UNBOUNDED
    stop_ids: frozenset[TargetId] = frozenset()
    completes_stop: Callable[[TargetId], bool] | None = None
    target: TargetModelSession | None = None
    drafts_last_id: bool = False
    stops: Collection[int] = ()

    def room(self, context: Context) -> int:
        """How many more ids may be emitted."""
        room = self.context_length - len(context.ids)
        if self.max_tokens is not None:
            room = min(room, self.max_tokens - context.emitted_count)
        return room

    def proposed(self, context: Context) -> int:
        """How many ids in a row may be proposed."""
        # The target adds one id of its own, so the last one need not be proposed.
        most = self.room(context) - (not self.drafts_last_id)
        if self.target is not None:
            most = min(most, self.target.proposable(context.ids))
        return max(0, most)

    def fitting(self, proposal: Proposal) -> Proposal:
        """The same without ids that the target lacks, as tokenizers, tables and draft models may
        know more, and without what follows a stop id, after which nothing is emitted."""
        if self.target is None:
            return proposal
        tree = proposal.tree.below(self.target.vocabulary_size, self.stop_ids)
        return proposal if tree is proposal.tree else replace(proposal, tree=tree)

    def cut(self, ids: tuple[TargetId, ...]) -> tuple[tuple[TargetId, ...], FinishReason | None]:
        """The ids of a round up to the one that ends the output, and the reason if one does."""
        for count, token in enumerate(ids, 1):
            if token in self.stop_ids or (self.completes_stop and self.completes_stop(token)):
                return ids[:count], "stop"
        return ids, None


class Decoding:
    """One generation after `context`, until a limit is met; `ends` says which then.

    A drafter changes how many rounds this takes, never what is emitted. It may be left after any
    round: everything emitted until then is committed, and nothing is left to clean up.
    A round is to propose, to verify and to commit. Whoever decodes several generations together
    verifies all proposals between the two other steps.
    clock: in seconds. It is read here alone, so no round is charged with what happens between two.
    """

    def __init__(
        self,
        context: Context,
        drafter: Drafter,
        verifier: Verifier,
        *,
        limits: Limits,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.context, self.drafter, self.verifier, self.limits = context, drafter, verifier, limits
        self._clock = clock
        self._room = limits.room(context)
        self.ends: FinishReason | None = None if self._room > 0 else "length"
        self._limit = 0
        self._began = self._drafted = 0.0
        self._learning = 0.0  # time that the drafter took to learn from the round before

    @property
    def is_last(self) -> bool:
        """Whether the coming round is the last one, whatever it gives."""
        return self._room == 1

    def __iter__(self) -> Iterator[Event]:
        """All of it, as events, which are the only output."""
        yield Started(len(self.context.ids))
        yield from self.reading()
        while self.ends is None:
            yield self.round()
        yield Finished(self.ends)

    def reading(self) -> Iterator[Reading]:
        """Read a long prompt in steps. A caller may leave the rest to the first round."""
        target, ids = self.limits.target, self.context.ids
        if self.ends is not None or target is None:
            return
        began = self._clock()
        for done in target.reading(ids, stops=self.limits.stops):
            yield Reading(done, len(ids), self._clock() - began)
            began = self._clock()

    def round(self) -> Round:
        proposal = self.propose()
        return self.commit(proposal, self.verifier.verify(self.context, proposal))

    def propose(self) -> Proposal:
        """What the target is to verify next."""
        self._began = self._clock()
        self._limit = self.limits.proposed(self.context)
        proposal = self.limits.fitting(self.drafter.propose(self.context, self._limit))
        self._drafted = self._clock()
        return proposal

    def commit(
        self, proposal: Proposal, verdict: Verdict, verification: float | None = None
    ) -> Round:
        """Take what was verified over into the context.

        verification: seconds of the pass; None for all since the proposal was made.
        """
        verified, learning = self._clock(), self._learning
        if verification is None:
            verification = verified - self._drafted - verdict.waited
        ids, self.ends = self.limits.cut(verdict.ids[: self._room])
        self.context.extend(ids)
        self._room -= len(ids)
        if self.ends is None and not self._room:
            self.ends = "length"
        round_ = Round(
            limit=self._limit,
            tree=proposal.tree,
            path=verdict.path[: len(ids)],
            emitted=ids,
            rows=verdict.rows,
            draft_passes=proposal.draft_passes,
            counts=proposal.counts,
            seconds=self._clock() - self._began + learning,
            drafting=self._drafted - self._began + learning - proposal.waited,
            verification=verification,
            logprobs=verdict.logprobs,
            ends=self.ends,
        )
        began = self._clock()
        self.drafter.observe(round_)
        self._learning = self._clock() - began
        return round_


_Mask: TypeAlias = NDArray[np.bool_] | None
"""Which ids a grammar allows, bool[rows, vocabulary]; None for all."""


class Choices(NamedTuple):
    """The target's choices.

    chosen: i[rows], lazy; or those ids by row that matter, read already. logprobs: f[vocabulary] of
    each such row. likely: arrays i[rows, width] and f[rows, width] for the store of rows. waited:
    seconds that reading them has waited for passes of other generations.
    """

    chosen: Array | Mapping[int, TargetId]
    logprobs: Array | Mapping[int, Array]
    rows: int
    likely: tuple[Array, ...] = ()
    waited: float = 0.0


class TargetVerifier:
    """Emits what the target chooses itself at every position, whatever is proposed.

    One pass over the last committed id and the proposal gives the target's choice after each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    At most one path of a tree agrees, as a choice depends on its position and not on its row.
    store: is told the target's top-k logits after every row, while the next pass runs.
    constraint: the grammar that the output follows. Its masks are made while the pass runs.
    """

    def __init__(
        self,
        session: TargetModelSession,
        sampler: Sampler,
        store: RowStore | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.session, self._sampler, self._constraint = session, sampler, constraint
        self._store, self._bare = store, False
        self._ahead: tuple[int, Choices | Array] | None = None
        self._untold: tuple[list[TargetId], TokenTree[TargetId], tuple[Array, ...]] | None = None

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        ids = context.ids
        choices, tree = self.chosen_ahead(ids, proposal), proposal.tree
        if choices is None:
            reads = self.session.reads([*ids], tree)
            choices = self.choices(ids, tree, self.session.run(reads), len(reads.tokens))
        if self.may_run_ahead(proposal):  # so the choice is an array
            logits = self.session.feed(choices.chosen)
            self.session.start_ahead(*self.go_on(len(ids) + 1, logits))
        return self.verdict(ids, proposal, choices)

    @property
    def is_ahead(self) -> bool:
        """Whether the pass of the coming round has begun."""
        return self._ahead is not None

    def may_run_ahead(self, proposal: Proposal) -> bool:
        """Whether the next pass may begin before the choice of this one is read."""
        return proposal.run_ahead and not proposal.tree and not self._sampler.needs_history

    def verdict(self, ids: Sequence[TargetId], proposal: Proposal, choices: Choices) -> Verdict:
        """The verdict on a proposal after `ids`, from the choices; waits for the pass."""
        chosen, logprobs, fed, likely, waited = choices
        if self._store is not None and self._untold is not None:
            before, tree, arrays = self._untold
            self._store.learn(before, tree, *map(np.array, arrays))
        self._untold = (list(ids), proposal.tree, likely) if likely else None
        if isinstance(chosen, Mapping):
            by_row = chosen
        else:
            waited = self.session.wait_for_others(chosen)
            by_row = dict(enumerate(self.session.read(chosen)))
        path = proposal.tree.agreed_path(by_row)
        rows = [0, *[index + 1 for index in path]]
        if self._constraint is not None:
            self._constraint.check(rows)
        return Verdict(
            ids=tuple([by_row[row] for row in rows]),
            path=tuple(path),
            rows=fed,
            logprobs=[logprobs[row] for row in rows],
            waited=waited,
        )

    def chosen_ahead(self, ids: Sequence[TargetId], proposal: Proposal) -> Choices | None:
        """The choices of a pass that ran ahead and can be used now; None if there is none."""
        self._bare = proposal.bare
        (ahead, self._ahead), tree = (self._ahead, None), proposal.tree
        if ahead is None or tree or ahead[0] != len(ids):
            return None
        return ahead[1] if isinstance(ahead[1], Choices) else self.choices(ids, tree, ahead[1], 1)

    def choices(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, rows: int
    ) -> Choices:
        mask: _Mask = None
        if self._constraint is not None:
            self.session.start(logits)  # the pass begins before it is found out what is allowed
            mask = self._constraint.masks(ids, tree, logits.shape[-1])
        if tree and self._sampler.needs_order:
            likely = self._likely(logits)
            self.session.start(logits, *likely)
            waited = self.session.wait_for_others(logits)
            return Choices(*self._choose_along(ids, tree, logits, mask), rows, likely, waited)
        positions = [len(ids) + depth for depth in (0, *tree.depths)]
        chosen, logprobs = self._sampler.choose(logits, positions, ids=ids, mask=mask)
        # Processors and masks change the log-probabilities: the raw ones are then computed again.
        changed = self._sampler.needs_history or mask is not None
        likely = self._likely(logits, None if changed else logprobs)
        self.session.start(chosen, logprobs, *likely)
        return Choices(chosen, logprobs, rows, likely)

    def _likely(self, logits: Array, logprobs: Array | None = None) -> tuple[Array, ...]:
        """What the store of rows is to be told; nothing without one. logprobs: of the logits."""
        if self._store is None or self._bare:
            return ()
        if logprobs is None:
            return self.session.top_k(logits, self._store.width, normalized=False)
        return self.session.top_k(logprobs, self._store.width)

    def _choose_along(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, mask: _Mask
    ) -> tuple[dict[int, TargetId], dict[int, Array]]:
        """Choices and log-probabilities of the rows along the path that agrees, one after another.

        Callables may keep a state, so they are told what plain decoding would tell them: each
        history once, longer by one id than the last, none with a rejected id. That costs a wait for
        each accepted id, and spares the rows that were guessed wrong.
        """
        history = list(ids)
        choices: dict[int, TargetId] = {}
        logprobs: dict[int, Array] = {}
        row: int | None = 0
        while row is not None:
            allowed = None if mask is None else mask[row : row + 1]
            chosen, row_logprobs = self._sampler.choose(
                logits[row : row + 1], [len(history)], ids=history, mask=allowed
            )
            (choices[row],) = self.session.read(chosen)
            logprobs[row] = row_logprobs[0]
            history.append(choices[row])
            child = tree.child_of(row - 1, choices[row])
            row = None if child is None else child + 1
        return choices, logprobs

    def go_on(self, position: int, logits: Array) -> tuple[Array, ...]:
        """Choose the id at `position` from the logits of a pass that runs ahead.

        mlx-lm's `generate_step` runs ahead as well. One pass is wasted at the end of a generation.
        Returns: what the next round reads; its first array tells when the pass is done.
        """
        if self._constraint is not None:  # what it allows depends on the id
            self._ahead = position, logits
            return (logits,)
        following, logprobs = self._sampler.choose(logits, [position])
        likely = self._likely(logits, logprobs)
        self._ahead = position, Choices(following, logprobs, 1, likely)
        return following, logprobs, *likely
