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
from tokalign.tables.token_tree import EMPTY_TREE, TokenTree
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.sampling import Sampler
    from tokalign.runtime.mlx.session import TargetModelSession

MOST_READ_AGAIN = 8
"""A round that reads more ids again proposes nothing; it emits one id, so no pass is lost. With 4
and 12 decoding took longer, if a row costs 5 to 24 % of a pass (`lab/results/cache-rows.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one generation.

    max_tokens: output tokens; None for no bound. context_length: prompt and output together.
    stop_ids: the first of them in the output is emitted and ends it.
    completes_stop: whether an id completes a stop string, which makes it the last one of the
    output; asked once for every id, in order.
    target: the session that verifies. Its cache says how far drafts can be taken back, where it is
    quantized, and how many ids the next pass reads once more.
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
        most, length = self.room(context) - (not self.drafts_last_id), len(context.ids)
        if (target := self.target) is None:
            return max(0, most)
        most = min(most, target.rewindable - length)
        # One token at a time, no pass begins before quantization does and ends after it.
        if length <= target.quantized_from:
            most = min(most, target.quantized_from - length)
        if most <= 0 or target.read_again(context.ids) > MOST_READ_AGAIN:
            return 0
        return most

    def fitting(self, proposal: Proposal) -> Proposal:
        """The same without ids that the target lacks.

        Tokenizers, tables and draft models may know more ids than the target has rows.
        """
        if self.target is None:
            return proposal
        tree = proposal.tree.below(self.target.vocabulary_size)
        return proposal if tree is proposal.tree else replace(proposal, tree=tree)

    def cut(self, ids: tuple[TargetId, ...]) -> tuple[tuple[TargetId, ...], FinishReason | None]:
        """The ids of a round up to the one that ends the output, and the reason if one does."""
        for count, token in enumerate(ids, 1):
            completes = self.completes_stop
            if token in self.stop_ids or (completes is not None and completes(token)):
                return ids[:count], "stop"
        return ids, None


def decode(
    context: Context,
    drafter: Drafter,
    verifier: Verifier,
    *,
    limits: Limits,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Event]:
    """Generate after `context` until a limit is met; the events are the only output.

    A drafter changes how many rounds this takes, never what is emitted. The consumer may stop at
    any event: everything emitted until then is committed, and nothing is left to clean up.
    clock: in seconds. It is read here alone, so no round is charged with what happens between two.
    """
    yield Started(len(context.ids))
    room = limits.room(context)
    ends: FinishReason | None = None if room > 0 else "length"
    if ends is None and limits.target is not None:
        began = clock()
        for done in limits.target.reading(context.ids, stops=limits.stops):
            yield Reading(done, len(context.ids), clock() - began)
            began = clock()
    learning = 0.0  # time that the drafter took to learn from the round before
    while ends is None:
        began = clock()
        limit = limits.proposed(context)
        proposal = limits.fitting(drafter.propose(context, limit))
        drafted = clock()
        verdict = verifier.verify(context, proposal)
        verified = clock()
        ids, ends = limits.cut(verdict.ids[:room])
        context.extend(ids)
        room -= len(ids)
        if ends is None and not room:
            ends = "length"
        one = Round(
            limit=limit,
            tree=proposal.tree,
            path=verdict.path[: len(ids)],
            emitted=ids,
            rows=verdict.rows,
            draft_passes=proposal.draft_passes,
            counts=proposal.counts,
            seconds=clock() - began + learning,
            drafting=drafted - began + learning - proposal.waited,
            verification=verified - drafted - verdict.waited,
            logprobs=verdict.logprobs,
            ends=ends,
        )
        began = clock()
        drafter.observe(one)
        learning = clock() - began
        yield one
    yield Finished(ends)


_Mask: TypeAlias = NDArray[np.bool_] | None
"""Which ids a grammar allows, bool[rows, vocabulary]; None for all."""


class Choices(NamedTuple):
    """The target's choices.

    chosen: i[rows], lazy; or those ids by row that matter, read already. logprobs: f[vocabulary] of
    each such row. rows: how many rows the target computed for them. likely: arrays i[rows, width]
    and f[rows, width] for the store of rows, if there is one.
    """

    chosen: Array | Mapping[int, TargetId]
    logprobs: Array | Mapping[int, Array]
    rows: int
    likely: tuple[Array, ...] = ()


class TargetVerifier:
    """Emits what the target chooses itself at every position, whatever is proposed.

    One pass over the last committed id and the proposal gives the target's choice after each of
    them; the proposal is accepted as far as it agrees. So drafting changes speed, never output.
    At most one path of a tree agrees, as a choice depends on its position and not on its row.
    store: is told the target's top-k logits after every row, which are read with the choices. It
    is told while the next pass runs, as rows hardly ever say what follows the id that ends them.
    constraint: the grammar that the output follows. Its masks are made while the pass runs.
    """

    def __init__(
        self,
        session: TargetModelSession,
        sampler: Sampler,
        store: RowStore | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._store, self._bare = store, False
        self._constraint = constraint
        self._waited = 0.0
        self._ahead: tuple[int, Choices | Array] | None = None
        self._untold: tuple[list[TargetId], TokenTree[TargetId], tuple[Array, ...]] | None = None

    def verify(self, context: Context, proposal: Proposal) -> Verdict:
        ids, self._waited, self._bare = context.ids, 0.0, proposal.bare
        chosen, logprobs, fed, likely = self._choose(ids, proposal)
        if self._store is not None and self._untold is not None:
            before, tree, arrays = self._untold
            self._store.learn(before, tree, *map(np.array, arrays))
        self._untold = (list(ids), proposal.tree, likely) if likely else None
        if isinstance(chosen, Mapping):
            choices = chosen
        else:
            if proposal.run_ahead and not proposal.tree and not self._sampler.needs_history:
                self._run_ahead(len(ids), chosen)
            self._waited = self._session.wait_for_others(chosen)
            choices = dict(enumerate(self._session.read(chosen)))
        path = proposal.tree.agreed_path(choices)
        rows = [0, *[index + 1 for index in path]]
        if self._constraint is not None:
            self._constraint.check(rows)
        return Verdict(
            ids=tuple([choices[row] for row in rows]),
            path=tuple(path),
            rows=fed,
            logprobs=[logprobs[row] for row in rows],
            waited=self._waited,
        )

    def _choose(self, ids: Sequence[TargetId], proposal: Proposal) -> Choices:
        """The target's choice after the context and after each proposed id that matters."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not proposal.tree and ahead[0] == len(ids):
            if isinstance(ahead[1], Choices):
                return ahead[1]
            return self._choices(ids, EMPTY_TREE, ahead[1], 1)
        fed = self._session.rows
        tree = proposal.tree
        is_chain = tree.chain_length == len(tree)
        if is_chain:
            logits = self._session.logits([*ids, *tree.ids], last=len(tree) + 1)
        else:
            logits = self._session.tree(ids, tree)
        return self._choices(ids, tree, logits, self._session.rows - fed)

    def _choices(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, rows: int
    ) -> Choices:
        """The choices from the logits after the context and after each id of the tree."""
        mask = self._mask(ids, tree, logits)
        if tree and self._sampler.needs_order:
            likely = self._likely(logits)
            self._session.start(logits, *likely)
            self._waited = self._session.wait_for_others(logits)
            return Choices(*self._choose_along(ids, tree, logits, mask), rows, likely)
        positions = [len(ids) + depth for depth in (0, *tree.depths)]
        chosen, logprobs = self._sampler.choose(logits, positions, ids=ids, mask=mask)
        # Processors and masks change the log-probabilities: the raw ones are then computed again.
        changed = self._sampler.needs_history or mask is not None
        likely = self._likely(logits, None if changed else logprobs)
        self._session.start(chosen, logprobs, *likely)
        return Choices(chosen, logprobs, rows, likely)

    def _mask(self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array) -> _Mask:
        """Which ids the grammar allows in each row; the pass begins before that is found out."""
        if self._constraint is None:
            return None
        self._session.start(logits)
        return self._constraint.masks(ids, tree, logits.shape[-1])

    def _likely(self, logits: Array, logprobs: Array | None = None) -> tuple[Array, ...]:
        """What the store of rows is to be told; nothing without one. logprobs: of the logits."""
        if self._store is None or self._bare:
            return ()
        if logprobs is None:
            return self._session.top_k(logits, self._store.width, normalized=False)
        return self._session.top_k(logprobs, self._store.width)

    def _choose_along(
        self, ids: Sequence[TargetId], tree: TokenTree[TargetId], logits: Array, mask: _Mask
    ) -> tuple[dict[int, TargetId], dict[int, Array]]:
        """Choices and log-probabilities of the rows along the path that agrees, one after another.

        Samplers and logits processors that are callables may keep a state. So they are told what
        plain decoding would tell them: each history once, longer by one id than the last, and none
        with a rejected id. That costs a wait for each accepted id, and spares the rows that were
        guessed wrong.
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
            (choices[row],) = self._session.read(chosen)
            logprobs[row] = row_logprobs[0]
            history.append(choices[row])
            child = tree.child_of(row - 1, choices[row])
            row = None if child is None else child + 1
        return choices, logprobs

    def _run_ahead(self, length: int, chosen: Array) -> None:
        """Start the next round's pass while the host still waits for this round's id.

        mlx-lm's `generate_step` does the same. One pass is wasted at the end of a generation.
        """
        position = length + 1
        logits = self._session.feed(chosen)
        if self._constraint is not None:  # what it allows depends on the id
            self._session.start_ahead(logits)
            self._ahead = position, logits
            return
        following, logprobs = self._sampler.choose(logits, [position])
        likely = self._likely(logits, logprobs)
        self._session.start_ahead(following, logprobs, *likely)
        self._ahead = position, Choices(following, logprobs, 1, likely)
