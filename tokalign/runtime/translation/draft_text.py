"""The draft model's view of the committed text: its own ids, always canonical.

The published systems feed their draft model a concatenation of separately encoded chunks. Here it
sees what it was trained on: its tokenizer's encoding of the whole committed text, kept up to date.
Law: at every round the bytes are the committed bytes, and the ids are what encoding the whole at
once gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tokalign.bpe.incremental import IncrementalEncoder
from tokalign.runtime.text import opens_segment, token_bytes
from tokalign.tables.alignment import match_roles
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class DraftText:
    """The draft's ids: a settled head, then the canonical encoding of the open text segment.

    A segment ends at a special token. Special tokens of the target become the draft's token of the
    same role or spelling, and where it has none, their spelling as text. At the start of a segment
    the target's dummy prefix is left out and the draft's own is put in.

    draft_prompt: the draft's rendering of the prompt; it stands for the target ids `covered`.
    """

    _encoder: ClassVar[type[IncrementalEncoder[DraftId]]] = IncrementalEncoder

    def __init__(
        self,
        target: Tokenizer[TargetId],
        draft: Tokenizer[DraftId],
        *,
        draft_prompt: Sequence[DraftId] = (),
        covered: Sequence[TargetId] = (),
    ) -> None:
        self._target, self._draft = target, draft
        self._special_of = map_specials(target, draft)
        tokens = draft.vocabulary.tokens
        length = len(draft_prompt)
        while length and token_bytes(tokens, draft_prompt[length - 1]):
            length -= 1
        self._ids = list(draft_prompt[:length])
        self._open_segment()
        self._append(draft.vocabulary.bytes_of(draft_prompt[length:]))
        self._at_start = opens_segment(target, covered)
        self._seen = len(covered)

    @property
    def segment(self) -> IncrementalEncoder[DraftId]:
        """The segment behind the last special token: text, ids, how many of them are stable."""
        return self._segment

    @property
    def ids(self) -> list[DraftId]:
        """All of the draft's ids for the committed text. Read only; valid until `follow`."""
        return self._ids

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Take in what `ids` (prompt and output, whole) has more than at the last call."""
        tokens, pending = self._target.vocabulary.tokens, b""
        for token in ids[self._seen :]:
            data = tokens[token] if token < len(tokens) else b""
            if data:
                pending += self._without_dummy_prefix(data) if self._at_start else data
            else:
                self._push(pending)
                pending = b""
                self._push_special(token)
        self._push(pending)
        self._seen = len(ids)

    def _without_dummy_prefix(self, data: bytes) -> bytes:
        self._at_start = False
        return data.removeprefix(b" ") if self._target.spec.dummy_prefix else data

    def _push_special(self, token: TargetId) -> None:
        self._at_start = True
        own = self._special_of.get(token)
        if own is None:
            self._push(self._target.vocabulary.specials.get(token, "").encode())
        else:
            self._ids.append(own)
            self._open_segment()

    def _push(self, data: bytes) -> None:
        """Append text to the open segment, behind the draft's dummy prefix if it begins it."""
        if data:
            if self._draft.spec.dummy_prefix and not self._segment.ids:
                data = b" " + data
            self._append(data)

    def _append(self, data: bytes) -> None:
        """Only ids that may change are touched: a copy of all would cost a long text dearly."""
        segment = self._segment
        settled = segment.settled
        segment.push(data)
        self._ids[self._begin + settled :] = segment.ids[settled:]

    def _open_segment(self) -> None:
        self._segment = self._encoder(self._draft.bpe)
        self._begin = len(self._ids)  # where the segment's ids stand among all


class ChunkEncoder(IncrementalEncoder[DraftId]):
    """Encodes every push on its own and joins the ids: right bytes, but not canonical."""

    def push(self, data: bytes) -> None:
        self._text += data
        self._ids += self._bpe.encode(data)


class ChunkedText(DraftText):
    """The draft's view as the published systems keep it: each round's text encoded by itself.

    The bytes are right, unlike theirs; but a word that came in two rounds stays cut in two, which
    is not what the draft model was trained on. Source: the MLX-LM fork of the Polish study.
    """

    _encoder = ChunkEncoder


def map_specials(target: Tokenizer[TargetId], draft: Tokenizer[DraftId]) -> dict[TargetId, DraftId]:
    """For each of the target's special tokens the draft's: by role first, then by spelling."""
    ours = draft.vocabulary
    by_spelling = {
        token: ours.special_ids[spelling]
        for token, spelling in target.vocabulary.specials.items()
        if spelling in ours.special_ids
    }
    # Roles as the target sees them: each of its ends of turn becomes the draft's.
    by_role = match_roles(target.vocabulary.roles, ours.roles)
    return by_spelling | by_role
