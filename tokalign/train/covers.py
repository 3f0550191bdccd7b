"""Which draft tokens begin with a target token: `exact` looks these sums up, training learns them.

At a boundary of the target's text the draft model has read its own tokens up to there, or up to a
few bytes before. The probability of a next target token is that of all draft tokens which continue
those bytes with it. Draft tokens that begin alike are one range in the order of their bytes; those
of a range count whose text the target would really begin with that token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.vocabulary import DraftId, TargetId

Ids = NDArray[np.int32]

_NONE: Ids = np.zeros(0, np.int32)
_LOOKED_AT = 16


class Covers:
    """Covers of target tokens among some of a draft's tokens.

    chosen: their ids; those that a text of the kind in question has are enough. A letter begins
    thousands of tokens, and most of them are of other languages and have no probability there.

    Example (Llama 3 drafts for Bielik; the bytes read already are ` k`): of the tokens that begin
    with ` kom`, ` kom` and ` komp` cover Bielik's `om`; ` komet` does not, as `omet` is `omet`
    to Bielik, one token.
    """

    def __init__(self, pair: Pair, chosen: Iterable[DraftId]) -> None:
        self._tokens = tokens = pair.draft.vocabulary.tokens
        self._order = TokenOrder.of(tokens, [token for token in chosen if tokens[token]])
        self._ids = np.array(self._order.ids, np.int32)
        self._theirs = pair.target.vocabulary.tokens
        self._encode = pair.target.encoder.encode
        self._special = {target: draft for draft, target in pair.roles().items()}
        self.first = lru_cache(maxsize=1 << 18)(self._first)
        self.of = lru_cache(maxsize=1 << 16)(self._of)
        self.starting_with = lru_cache(maxsize=1 << 14)(self._starting_with)

    def bytes_of(self, token: TargetId) -> bytes:
        """The bytes of a target token; none for one that its model has beyond its vocabulary."""
        return self._theirs[token] if token < len(self._theirs) else b""

    def _first(self, data: bytes) -> TargetId | None:
        """The target token that `data` begins with, encoded by itself."""
        return next(iter(self._encode(data)), None)

    def _starting_with(self, prefix: bytes) -> Ids:
        """The draft tokens that begin with these bytes, i[n]."""
        start, end = self._order.starting_with(prefix)
        return self._ids[start:end]

    def _of(self, prefix: bytes, token: TargetId) -> Ids:
        """The draft tokens that begin with `prefix`, the last bytes of which end `token`, i[n].

        Those that would change `token` by what they add after it are left out. A special token is
        covered by its counterpart.
        """
        data = self.bytes_of(token)
        if not data:
            special = self._special.get(token)
            return _NONE if special is None or prefix else np.array([special], np.int32)
        start, end = self._order.starting_with(prefix)
        added = len(prefix)
        kept = [
            self.first(data + spelled[added:]) == token
            for spelled in self._order.spelled[start:end]
        ]
        return self._ids[start:end][np.array(kept, np.bool_)] if kept else _NONE

    def guess(self, partial: bytes, row: NDArray[Any]) -> TargetId | None:
        """The most probable next target token by the covers of one row of logits f[vocabulary].

        partial: the bytes that the draft model's next token has to begin with. Only its most
        probable tokens are looked at.
        """
        ids = self.starting_with(partial)
        if not len(ids):
            return None
        logits = row[ids]
        if len(ids) > _LOOKED_AT:
            best = np.argpartition(logits, -_LOOKED_AT)[-_LOOKED_AT:]
            ids, logits = ids[best], logits[best]
        mass: Counter[TargetId] = Counter()
        tokens = np.exp(logits.astype(np.float64) - logits.max())
        for token, probability in zip(ids.tolist(), tokens.tolist(), strict=True):
            target = self.first(self._tokens[token][len(partial) :])
            if target is not None:
                mass[target] += probability
        return max(mass, key=mass.__getitem__) if mass else None
