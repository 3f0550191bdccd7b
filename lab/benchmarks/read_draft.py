"""A draft model that reads a recorded answer once, and then drafts chains without passes.

What it says after the committed text, and after drafts that were right, does not depend on who
asks. So one pass over a tree computes these rows: the draft's ids of every beginning of the answer.
A draft that was right in other ids has its rows computed when they are asked for. After a wrong id
nothing can be accepted, so such rows are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.rounds import Array
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import DraftText
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import DraftId, TargetId


class ReadAnswer(DraftModelSession):
    """A session in which an answer was read. Only chains can be drafted."""

    can_branch = False
    reads_all = True

    def begin(self, pair: Pair, text: DraftText, ids: Sequence[TargetId], given: int) -> None:
        """Read an answer. text: of its prompt, which is not used otherwise. ids: all that will be
        committed, of which the first `given` are the prompt."""
        self._tokens = pair.draft.vocabulary.tokens
        readings = []
        for length in range(given, len(ids) + 1):
            text.follow(ids[:length])
            readings.append(tuple(text.ids))
        self._answer, self._path = readings[-1], list[DraftId]()
        common = 0
        while all(common < len(one) and one[common] == self._answer[common] for one in readings):
            common += 1
        before = self._answer[: common - MOST_BACK]
        self._rows: dict[tuple[DraftId, ...], Array] = {}
        places = {before: -1}
        for reading in readings:
            for end in range(len(before) + 1, len(reading) + 1):
                places.setdefault(reading[:end], len(places) - 1)
        added = list(places)[1:]
        tree = TokenTree(
            tuple(path[-1] for path in added),
            tuple(places[path[:-1]] for path in added),
            ("",) * len(added),
        )
        rows = super().tree(before, tree)
        mx.eval(rows)
        self._rows = {path: rows[1 + place] for path, place in places.items()}
        self._text = b"".join(self._tokens[token] for token in self._answer[len(before) :])
        self._before = before

    def logits(self, ids: Sequence[DraftId], last: int = 1) -> Array:
        """See `ModelSession.logits`."""
        self.passes += 1
        self._path = list(ids)
        ends = range(len(ids) - last + 1, len(ids) + 1)
        return mx.stack([self._row(tuple(ids[:end])) for end in ends])

    def feed(self, token: Array) -> Array:
        """See `ModelSession.feed`; the token is waited for."""
        self.passes += 1
        self._path.append(DraftId(int(token.item())))
        return self._row(tuple(self._path))[None]

    def _row(self, path: tuple[DraftId, ...]) -> Array:
        if path not in self._rows:
            if self._is_right(path):
                [self._rows[path]] = super().logits(path)
                self.passes -= 1
            else:
                return mx.zeros(self.vocabulary_size)
        return self._rows[path]

    def _is_right(self, path: tuple[DraftId, ...]) -> bool:
        at = len(self._before)
        spelled = b"".join(self._tokens[token] for token in path[at:])
        return path[:at] == self._before and self._text.startswith(spelled)


MOST_BACK = 3
"""Rows before the first that the answers differ in: as many tokens may be taken back, and more."""
