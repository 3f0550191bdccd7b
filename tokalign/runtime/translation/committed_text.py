"""The committed text: what the draft model reads of it, and what may follow it in the target's ids.

The published systems feed their draft model a concatenation of separately encoded chunks. Here it
reads what it was trained on: its tokenizer's encoding of the whole committed text, kept up to date.
Law: in every round the bytes are the committed bytes, and the ids are what encoding all of them at
once gives.

Example: Bielik emits `bardzo` as three tokens, one per round; it is a single token of Llama 3.
    committed      DraftText                ChunkedText
    ...` b`        ...` b`                  ...` b`
    ...` b|ard`    ...` bard`               ...` b|ard`
    ...` b|ard|zo` ...` bardzo`             ...` b|ard|zo`

Committed ids are never changed. So bytes that follow them either have a canonical encoding that
leaves those ids as they are, or they are *absorbed*: the target has decided against them when it
ended its last token there. `bpe/absorption.py` has the theory; `Boundary` follows a growing text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from tokalign.tables.alignment import MergeSites, match_roles
from tokalign.tokenizer.bpe.absorption import Absorption, shared_absorption
from tokalign.tokenizer.bpe.encoder import BytePairEncoding, IncrementalEncoder
from tokalign.tokenizer.bpe.pretokenizer import incomplete_tail
from tokalign.tokenizer.bpe.validity import PairValidity, Spine
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, Id, TargetId, token_bytes

OtherId = TypeVar("OtherId", bound=int)


class DraftText:
    """The draft's ids: a settled head, then the canonical encoding of the open text segment.

    A segment ends at a special token. A special token of the target becomes the draft's token of
    the same role or spelling; if there is none, its spelling is read as text, except that of BOS.
    At the start of a segment the target's dummy prefix is dropped and the draft's own is put in.

    draft_prompt: the draft's rendering of the prompt; it stands for the target ids `covered`.
    ids: the draft's ids of the whole committed text. Read only; valid until `follow`.
    segment: the text after the last special token, its ids, and how many of them are stable.
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
        self.ids = list(draft_prompt[:length])
        self._has_text = any(token_bytes(tokens, token) for token in draft_prompt)
        self._open_segment()
        self._append(draft.vocabulary.bytes_of(draft_prompt[length:]))
        self._at_start = target.opens_segment(covered)
        self._seen = len(covered)

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Take in what was added to `ids` (prompt and output, whole) since the last call."""
        tokens, pending = self._target.vocabulary.tokens, b""
        for token in ids[self._seen :]:
            data = tokens[token] if token < len(tokens) else b""
            if data:
                drops = self._at_start and self._target.spec.dummy_prefix
                pending += data.removeprefix(b" ") if drops else data
                self._at_start = False
            else:
                self._push(pending)
                pending = b""
                self._push_special(token)
        self._push(pending)
        self._seen = len(ids)

    def _push_special(self, token: TargetId) -> None:
        self._at_start = self._at_start or not self._target.spec.prefix_once
        own = self._special_of.get(token)
        if own is not None:
            self.ids.append(own)
        elif token != self._target.vocabulary.roles.bos:
            self._push(self._target.vocabulary.specials.get(token, "").encode())
            return
        self._open_segment()

    def _push(self, data: bytes) -> None:
        """Append text to the open segment; its first text is put after the draft's dummy prefix."""
        if data:
            spec = self._draft.spec
            opens = not self.segment.ids and not (spec.prefix_once and self._has_text)
            has_space = spec.prefix_unless_space and data.startswith(b" ")
            if spec.dummy_prefix and opens and not has_space:
                data = b" " + data
            self._has_text = True
            self._append(data)

    def _append(self, data: bytes) -> None:
        """Encode more text. Only ids that may change are replaced: copying all of them is slow."""
        segment, settled = self.segment, self.segment.settled
        segment.push(data)
        self.ids[self._begin + settled :] = segment.ids[settled:]

    def _open_segment(self) -> None:
        self.segment = self._growing(self._draft.encoder)
        self._begin = len(self.ids)  # index of the segment's first id


class ChunkEncoder(IncrementalEncoder[DraftId]):
    """Encodes every push on its own: the bytes are right, but the ids are not canonical."""

    def push(self, data: bytes) -> None:
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
    Each way in which `source` ends a turn becomes the way in which the other one does."""
    ids = other.vocabulary.special_ids
    by_spelling = {
        token: ids[spelling]
        for token, spelling in source.vocabulary.specials.items()
        if spelling in ids
    }
    by_role = match_roles(source.vocabulary.roles, other.vocabulary.roles)
    return by_spelling | by_role


_SPACE = 0x20

_LONGEST_LEFT = 64
"""Bytes of a piece that are looked at before the boundary."""


class Boundary:
    """Encodes what follows the committed ids.

    Example (Bielik), after ` Mam| kom` ("Mam" is "I have"):

        encode(b"puter")  is `put|er`: " Mam komputer" is ` Mam| kom|put|er`.
        encode(b"et")     is None: " Mam komet" is ` Mam| k|omet`, which has no ` kom`.
        absorbs(b"et")    is False: " Mam kometa" is ` Mam| kom|eta`.
        absorbs(b"etr")   is True: nothing that begins with " Mam kometr" keeps ` kom`.

    Only the ids since the last settled piece matter (see `bpe.incremental`): a few tokens.
    """

    def __init__(self, target: Tokenizer[TargetId], merge_sites: MergeSites | None = None) -> None:
        self._encoder = encoder = target.encoder
        self._encode_piece = encoder.encode_piece
        self._segment = IncrementalEncoder(encoder)
        self._by_words = encoder.splitter.cuts_at_spaces
        self._validity: PairValidity[TargetId] | None = None
        self._absorption: Absorption[TargetId] | None = None
        if isinstance(encoder, BytePairEncoding):
            if merge_sites is not None:
                self._absorption = shared_absorption(encoder, merge_sites.absorbs)
            # A pre-tokenizer and `ignore_merges` look at both sides of the boundary together.
            if encoder.splitter.merges_decide and not target.spec.ignore_merges:
                self._validity = encoder.validity
        self._seen = 0
        self._left: bytes = b""
        self._left_ids: list[TargetId] = []
        self._is_cut = False  # whether the committed text ends within a character
        self._edge: Spine[TargetId] = ()  # of the last committed token

    def follow(self, ids: Sequence[TargetId]) -> None:
        """Move the boundary to the end of `ids`, which extend those of the last call. ids: the
        whole prompt and output. Cost: 10 µs plus encoding the new bytes."""
        tokens = self._encoder.tokens
        new = [tokens[token] if token < len(tokens) else b"" for token in ids[self._seen :]]
        if b"" in new:  # a segment begins after a special token
            del new[: len(new) - new[::-1].index(b"")]
            self._segment = IncrementalEncoder(self._encoder)
        self._segment.push(b"".join(new))
        self._seen = len(ids)
        canonical = self._segment.ids[self._segment.settled :]
        committed = list(ids[len(ids) - len(canonical) :])
        if canonical != committed:
            # The target's ids are not canonical here, so only its last token is taken to count.
            committed = list(ids[-1:]) if canonical else []
        self._left_ids = committed = self._nearest(committed)
        self._left = b"".join([tokens[i] for i in committed])
        self._is_cut = incomplete_tail(self._left) > 0
        self._edge = ()
        if committed and self._validity is not None:
            self._edge = self._validity.right_spine(committed[-1])

    def _nearest(self, ids: list[TargetId]) -> list[TargetId]:
        """The last ids of a long piece: what follows it is decided at its end, and all of it would
        be encoded again for every guess."""
        tokens, size = self._encoder.tokens, 0
        for place in reversed(range(len(ids))):
            data = tokens[ids[place]]
            size += len(data)
            if size >= _LONGEST_LEFT and data[0] & 0xC0 != 0x80:
                return ids[place:]
        return ids

    def absorbs(self, data: bytes) -> bool:
        """Whether no canonical encoding continues with `data`, whatever comes after `data`.

        This says more than that `encode` gives None: then text after `data` may keep the boundary.
        Without a table of merge sites the answer is that of `encode`.
        Cost: 2 µs for data seen before, 20 µs with a pre-tokenizer; up to 100 µs for new data.
        """
        if self._absorption is None:
            return self.encode(data) is None
        if not self._left_ids:
            return False
        data = self._encoder.spelled(data)
        return self._absorption.absorbs(self._left, self._left_ids[-1], data)

    def encode(self, data: bytes) -> tuple[TargetId, ...] | None:
        """The ids of `data` after the committed ones; None if a text that ends there changes those.
        What the target cannot spell is left out, with all after it. Cost: 3 to 10 µs a word."""
        if self._encoder.missing:
            data = self._encoder.spelled(data)
        if self._validity is None:
            return self._new_ids(self._encoder.encode(self._left + data))
        if not data:
            return ()
        rest: tuple[TargetId, ...] = ()
        if self._by_words and data.rfind(b" ") >= 1:
            data, *words = self._encoder.splitter.split(data)
            for word in words:
                rest += self._encode_piece(word)
        left = self._left
        if not left or (self._by_words and data[0] == _SPACE and left[-1] != _SPACE):
            return self._encode_piece(data) + rest
        if self._is_cut or data[0] & 0xC0 == 0x80:  # the boundary cuts a character
            new = self._new_ids(self._encode_piece(left + data))
            return None if new is None else new + rest
        # Every part of a canonical encoding is canonical. So `data` is encoded by itself, which is
        # mostly cached, and only the pair of tokens at the boundary is checked.
        ids = self._encode_piece(data)
        if self._validity.stays_apart(self._edge, self._validity.left_spine(ids[0])):
            return ids + rest
        return None

    def _new_ids(self, whole: Sequence[TargetId]) -> tuple[TargetId, ...] | None:
        """What comes after the committed ids in `whole`; None if it does not begin with them."""
        kept = len(self._left_ids)
        if list(whole[:kept]) != self._left_ids:
            return None
        return tuple(whole[kept:])
