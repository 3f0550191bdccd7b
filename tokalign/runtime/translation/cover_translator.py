"""What a cover adds to the committed text, in bytes and in target ids."""

from __future__ import annotations

from collections.abc import Sequence

from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.boundary import Boundary
from tokalign.runtime.translation.growth import Extension, Node
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class CoverTranslator:
    """Translates covers. One object per request; `boundary` follows the committed ids elsewhere.

    pending: the bytes of none, the last one, the last two, ... of the draft's tokens in this round.
    """

    def __init__(self, pair: Pair, boundary: Boundary) -> None:
        self._tokens, self._roles = pair.draft.vocabulary.tokens, pair.roles()
        self._boundary = boundary
        self.pending: Sequence[bytes] = (b"",)

    def translate(self, back: int, token: DraftId) -> tuple[bytes, tuple[TargetId, ...] | None]:
        """The bytes that follow the committed text, and their target ids.

        back, token: of the cover. The ids are None if the bytes alone would change committed ids.
        A special token adds no bytes; its ids are its counterpart's, or none if it has no
        counterpart.
        """
        tokens = self._tokens
        spelled = tokens[token] if token < len(tokens) else b""
        data = spelled[len(self.pending[back]) :]
        if data:
            return data, self._boundary.encode(data)
        special = self._roles.get(token)
        return data, () if special is None else (special,)

    def extend(self, node: Node, token: DraftId) -> Extension:
        """See `growth.Extend`. A special token ends the text."""
        tokens = self._tokens
        spelled = tokens[token] if token < len(tokens) else b""
        if spelled:
            data = node.data + spelled
            ids = self._boundary.encode(data)
            absorbed = ids is None and self._boundary.absorbs(data)
            return Extension(data, ids, goes_on=not absorbed, absorbed=absorbed)
        special = self._roles.get(token)
        ids = None if special is None or node.ids is None else (*node.ids, special)
        return Extension(node.data, ids, goes_on=False)
