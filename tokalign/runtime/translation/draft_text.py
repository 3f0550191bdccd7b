"""The draft model's view of the committed text: its own ids, always canonical.

The published systems feed their draft model a concatenation of separately encoded chunks. Here it
reads what it was trained on: its tokenizer's encoding of the whole committed text, kept up to date.
Law: in every round the bytes are the committed bytes, and the ids are what encoding all of them at
once gives.

Example: Bielik emits `bardzo` as three tokens, one per round; it is a single token of Llama 3.
    committed      DraftText                ChunkedText
    ...` b`        ...` b`                  ...` b`
    ...` b|ard`    ...` bard`               ...` b|ard`
    ...` b|ard|zo` ...` bardzo`             ...` b|ard|zo`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from tokalign.bpe.encoder import IncrementalEncoder
from tokalign.runtime.text import opens_segment, token_bytes
from tokalign.tables.alignment import match_roles
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId

OtherId = TypeVar("OtherId", bound=int)


class DraftText:
    """The draft's ids: a settled head, then the canonical encoding of the open text segment.

    A segment ends at a special token. A special token of the target becomes the draft's token of
    the same role or spelling; if there is none, its spelling is read as text. At the start of a
    segment the target's dummy prefix is dropped and the draft's own is put in.

    draft_prompt: the draft's rendering of the prompt; it stands for the target ids `covered`.
    """

    _growing: ClassVar[type[IncrementalEncoder[DraftId]]] = IncrementalEncoder

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
        self._has_text = any(token_bytes(tokens, token) for token in draft_prompt)
        self._open_segment()
        self._append(draft.vocabulary.bytes_of(draft_prompt[length:]))
        self._at_start = opens_segment(target, covered)
        self._seen = len(covered)

    @property
    def segment(self) -> IncrementalEncoder[DraftId]:
        """The text after the last special token, its ids, and how many of them are stable."""
        return self._segment

    @property
    def ids(self) -> list[DraftId]:
        """The draft's ids of the whole committed text. Read only; valid until `follow`."""
        return self._ids

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Take in what was added to `ids` (prompt and output, whole) since the last call."""
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
        self._at_start = self._at_start or not self._target.spec.prefix_once
        own = self._special_of.get(token)
        if own is None:
            self._push(self._target.vocabulary.specials.get(token, "").encode())
        else:
            self._ids.append(own)
            self._open_segment()

    def _push(self, data: bytes) -> None:
        """Append text to the open segment; its first text is put after the draft's dummy prefix."""
        if data:
            spec = self._draft.spec
            opens = not self._segment.ids and not (spec.prefix_once and self._has_text)
            has_space = spec.prefix_unless_space and data.startswith(b" ")
            if spec.dummy_prefix and opens and not has_space:
                data = b" " + data
            self._has_text = True
            self._append(data)

    def _append(self, data: bytes) -> None:
        """Encode more text. Only ids that may change are replaced: copying all of them is slow."""
        segment = self._segment
        settled = segment.settled
        segment.push(data)
        self._ids[self._begin + settled :] = segment.ids[settled:]

    def _open_segment(self) -> None:
        self._segment = self._growing(self._draft.encoder)
        self._begin = len(self._ids)  # index of the segment's first id


class ChunkEncoder(IncrementalEncoder[DraftId]):
    """Encodes every push on its own: the bytes are right, but the ids are not canonical."""

    def push(self, data: bytes) -> None:
        """Append bytes, encoded by themselves."""
        self._text += data
        self._ids += self._encoder.encode(data)


class ChunkedText(DraftText):
    """The draft's view as the published systems keep it: each round's text encoded by itself.

    Unlike there, the bytes are right. But a word that came in two rounds stays cut in two, which
    is not what the draft model was trained on. Source: the MLX-LM fork of the Polish study.
    """

    _growing = ChunkEncoder


def map_specials(source: Tokenizer[Id], other: Tokenizer[OtherId]) -> dict[Id, OtherId]:
    """For each special token of `source` that of the other tokenizer, by role or else by spelling.

    Each way in which `source` ends a turn becomes the way in which the other one does.
    """
    ids = other.vocabulary.special_ids
    by_spelling = {
        token: ids[spelling]
        for token, spelling in source.vocabulary.specials.items()
        if spelling in ids
    }
    by_role = match_roles(source.vocabulary.roles, other.vocabulary.roles)
    return by_spelling | by_role
