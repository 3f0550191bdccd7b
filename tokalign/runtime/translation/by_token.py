"""The published translations: by ids, where every draft token is one target token, and by text.

Those by ids differ in what the draft model reads (`DraftText` or `MappedIds`) and in which of its
ids stand for ids of the target. `context:P` decodes the draft's ids and encodes their text again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, cast

import numpy as np

from tokalign.errors import IncompatibleError
from tokalign.runtime.rounds import Proposal
from tokalign.runtime.translation.base import Asked, Pair, chain_with_leaves
from tokalign.runtime.translation.committed_text import DraftText, map_specials
from tokalign.runtime.translation.growth import TEXT, Extension, ModelTree, Node, join
from tokalign.runtime.translation.read_ahead import ahead_by_token
from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId, token_bytes

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession
    from tokalign.runtime.mlx.sampling import Sampling

_ROOTS = 8
"""How many first ids are listed; some more than are gone on after, as they cost no pass."""


class MappedIds:
    """The ids of the target as the draft's: those that `shared` has, and others as spelled. ids:
    the draft's ids of all that was read so far, as of `DraftText`."""

    def __init__(self, shared: Intersection, spelled: Mapping[TargetId, Sequence[DraftId]]) -> None:
        self._shared, self._spelled = shared, spelled
        self.ids: list[DraftId] = []
        self._seen = 0

    def follow(self, ids: Sequence[TargetId]) -> None:
        shared, size = self._shared, len(self._shared.target_to_draft)
        for token in ids[self._seen :]:
            if token in self._spelled:
                self.ids += self._spelled[token]
            elif token < size and (own := shared.draft_of(token)) is not None:  # or it is padding
                self.ids.append(own)
        self._seen = len(ids)


class ByToken:
    """One draft token is one target token. text: what the draft model reads. shared: the target id
    of each draft id; no other may be chosen. sampler: how the target chooses; None for its argmax.

    Source: for `intersection`, token-level intersection (TLI) of "Accelerating LLM Inference with
    Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies" (Timor et al., 2025),
    on a byte-exact map; special tokens are matched by role.
    """

    def __init__(
        self, text: DraftText | MappedIds, shared: Intersection, sampler: Sampling | None = None
    ) -> None:
        self._text, self._shared, self._sampler = text, shared, sampler

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        self._text.follow(ids)
        return self._text.ids

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        own, firsts, sampler = self.read(ids), self._shared.first_ids, self._sampler
        if asked.alternatives and session.can_branch:
            return self._grow(session, len(ids), asked)
        drafted, masked_out = session.draft(own, asked.steps, firsts, sampler, len(ids))
        known = takewhile(lambda token: token is not None, map(self._shared.target_of, drafted))
        counts = {"unmapped": masked_out} if masked_out else {}
        chain = cast("list[TargetId]", list(known))
        return Proposal(tree=chain_with_leaves(chain, asked.learned), counts=counts)

    def _grow(self, session: DraftModelSession, start: int, asked: Asked) -> Proposal:
        """A tree: the first pass lists what may follow the text, further ones what follows that."""
        sampler, firsts, ids = self._sampler, self._shared.first_ids, self._text.ids
        ahead = ahead_by_token(asked.guesses(), self._draft_of)
        positions = [start, *[start + count for count in ahead.positions]]
        listed = session.branch(ids, ahead.tree, None, _ROOTS, firsts, sampler, positions)
        found, *known = listed()
        roots = [
            Node(logprob, -1, 0, token, *self._extend(TEXT, token))
            for logprob, token in sorted(zip(found.logprobs, found.ids, strict=True), reverse=True)
        ]
        growth = ModelTree(
            session,
            ids,
            roots,
            asked.steps - 1,
            extend=self._extend,
            sampler=sampler,
            start=start,
            firsts=firsts,
            ahead=ahead,
            known=known,
        )
        return Proposal(tree=join(growth.finish()))

    def _draft_of(self, token: TargetId) -> DraftId | None:
        return self._shared.draft_of(token) if token < len(self._shared.target_to_draft) else None

    def _extend(self, node: Node, token: DraftId) -> Extension:
        """See `growth.Extend`. The tree ends after an id that stands for none."""
        target = self._shared.target_of(token)
        found = None if target is None or node.ids is None else (*node.ids, target)
        return b"", found, found is not None, False


def same_tokenizer(pair: Pair, sampler: Sampling | None = None) -> ByToken:
    """`none`: both models have the same ids, except that special tokens may differ in number.
    sampler: as for `ByToken`. Raises: IncompatibleError for two different tokenizers."""
    target, draft = pair.target, pair.draft
    if target.fingerprint != draft.fingerprint:
        raise IncompatibleError(
            f"translation none needs one tokenizer, but target and draft have two "
            f"({target.fingerprint[:12]} and {draft.fingerprint[:12]}); "
            "choose translation intersection"
        )
    # Equal ids stand for each other; what only the wider vocabulary has stands for nothing.
    sizes = len(draft.vocabulary), len(target.vocabulary)
    to_target, to_draft = (np.full(size, NO_TOKEN, dtype=np.int32) for size in sizes)
    to_target[: min(sizes)] = to_draft[: min(sizes)] = np.arange(min(sizes))
    to_target[pair.size :] = NO_TOKEN
    # Special tokens may stand elsewhere, and the draft's may be unknown to the target. One map
    # is not the inverse of the other: the target's several ends of a turn may be one here.
    special_targets = map_specials(draft, target) | pair.roles()
    special_drafts = map_specials(target, draft)
    for own in draft.vocabulary.specials:
        to_target[own] = special_targets.get(own, NO_TOKEN)
    for token in target.vocabulary.specials:
        to_draft[token] = special_drafts.get(token, NO_TOKEN)
    shared = Intersection(to_target, to_draft)
    # Those that the draft lacks are read as text, as in `DraftText`.
    known = {*special_drafts, target.vocabulary.roles.bos}
    spelled = {
        TargetId(token): draft.encoder.encode(spelling.encode())
        for token, spelling in target.vocabulary.specials.items()
        if token not in known
    }
    return ByToken(MappedIds(shared, spelled), shared, sampler)


class ContextWindow:
    """`context:P`: encode the text of the last P target tokens and of the draft together, and drop
    as many ids as the former has alone.

    Source: the MLX-LM fork of the Polish study. Dropping by count loses what is merged across the
    boundary. Unlike the fork this takes text as bytes, so no leading space and no half character is
    lost.
    """

    def __init__(self, pair: Pair, text: DraftText, window: int) -> None:
        self._pair, self._text, self._window = pair, text, window

    def read(self, ids: Sequence[TargetId]) -> list[DraftId]:
        self._text.follow(ids)
        return self._text.ids

    def draft(self, ids: Sequence[TargetId], session: DraftModelSession, asked: Asked) -> Proposal:
        drafted = session.draft(self.read(ids), asked.steps)
        prefix = self._prefix(ids)
        chunk, end = self._pair.split_end(drafted.ids)
        whole = self._encode(prefix + self._pair.draft.vocabulary.bytes_of(chunk))
        chain = (*whole[len(self._encode(prefix)) :], *end)
        return Proposal(tree=chain_with_leaves(chain, asked.learned))

    def _prefix(self, committed: Sequence[TargetId]) -> bytes:
        """The bytes of the window's tokens after the last special one."""
        tokens = self._pair.target.vocabulary.tokens
        window = reversed(committed[-self._window :])
        spelled = list(takewhile(bool, (token_bytes(tokens, i) for i in window)))
        return b"".join(reversed(spelled))

    def _encode(self, data: bytes) -> list[TargetId]:
        """As an isolated string: decoding drops one leading space, encoding puts one in front."""
        if self._pair.target.spec.dummy_prefix and data:
            data = b" " + data.removeprefix(b" ")
        return self._pair.target.encoder.encode(data)
