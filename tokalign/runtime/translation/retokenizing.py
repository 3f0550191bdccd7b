"""`context:P`, the published translation that decodes the draft's ids and encodes the text again.

It does what its authors describe, except that the draft model's context always has the right bytes.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from tokalign.runtime.rounds import Context
from tokalign.runtime.text import token_bytes
from tokalign.runtime.translation.base import Learned, Pair, Translated, chain_with_leaves
from tokalign.runtime.translation.draft_text import DraftText
from tokalign.tokenizer.vocabulary import TargetId

if TYPE_CHECKING:
    from tokalign.runtime.mlx.draft_session import DraftModelSession


class ContextWindow:
    """`context:P`: encode the text of the last P target tokens and of the draft together, and drop
    as many ids as the former has alone.

    Source: the MLX-LM fork of the Polish study. Dropping by count loses what is merged across the
    boundary. Unlike the fork this takes text as bytes, so no leading space and no half character is
    lost.
    """

    def __init__(self, pair: Pair, text: DraftText, window: int) -> None:
        self._pair, self._text, self._window = pair, text, window

    def draft(
        self,
        context: Context,
        session: DraftModelSession,
        steps: int,
        *,
        alternatives: int,
        learned: Learned,
    ) -> Translated:
        """See `Translation`."""
        self._text.follow(context.ids)
        drafted = session.draft(self._text.ids, steps)
        prefix = self._prefix(context)
        chunk, end = self._pair.split_end(drafted.read().ids)
        whole = self._encode(prefix + self._pair.draft.vocabulary.bytes_of(chunk))
        ids = (*whole[len(self._encode(prefix)) :], *end)
        return Translated(chain_with_leaves(ids, learned))

    def _prefix(self, context: Context) -> bytes:
        """The bytes of the window's tokens after the last special one."""
        tokens = self._pair.target.vocabulary.tokens
        window = reversed(context.ids[-self._window :]) if self._window else iter(())
        spelled = list(takewhile(bool, (token_bytes(tokens, i) for i in window)))
        return b"".join(reversed(spelled))

    def _encode(self, data: bytes) -> list[TargetId]:
        """As an isolated string: decoding drops one leading space, encoding puts one in front."""
        if self._pair.target.spec.dummy_prefix and data:
            data = b" " + data.removeprefix(b" ")
        return self._pair.target.encoder.encode(data)
