"""A whole text as a draft model reads it, and what its rows say of the target's next tokens.

The draft model reads its own canonical encoding of a text. At every boundary of the target's tokens
one of its rows says how probable each next target token is: the row at the boundary, or, where the
boundary lies within a draft token, the row before that token, given the bytes read already. So one
pass gives the marginals that `exact` computes with a pass for each boundary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.runtime.chat import Prompt
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.bpe.encoder import TokenOrder
from tokalign.tokenizer.vocabulary import DraftId, TargetId, token_bytes

Ids = NDArray[np.int32]

NO_IDS: Ids = np.zeros(0, np.int32)
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class RowBoundary:
    """A boundary after the target token of index `at`.

    row: of the draft's text, after which a token follows that begins with `partial`.
    """

    row: int
    partial: bytes
    at: int


class DraftReading:
    """A text as the draft model reads it, and where the target's boundaries lie in it.

    own: the target's ids. ids, spelled: the draft's tokens. boundaries: those after which a row
    tells the next token; none if the two texts differ, for example in how special tokens are
    spelled.
    """

    def __init__(self, pair: Pair, own: Sequence[TargetId]) -> None:
        draft_text = Prompt(target=own).draft_text(pair)
        draft_text.follow(own)
        self.ids: list[DraftId] = list(draft_text.ids)
        ours, theirs = pair.draft.vocabulary.tokens, pair.target.vocabulary.tokens
        self.spelled = [token_bytes(ours, i) for i in self.ids]
        self.boundaries: list[RowBoundary] = []
        spelled = [token_bytes(theirs, i) for i in own]
        first = next((at for at, token in enumerate(spelled) if token), 0)
        if pair.target.spec.dummy_prefix and spelled:
            spelled[first] = spelled[first].removeprefix(b" ")
        data, read = b"".join(spelled), b"".join(self.spelled)
        if not read.endswith(data):
            return
        token, begin = 0, 0  # the draft token that the boundary lies in or before, its first byte
        ends = accumulate(map(len, spelled), initial=len(read) - len(data))
        for at, end in enumerate(islice(ends, 1, None)):
            while token < len(self.ids) and begin + len(self.spelled[token]) <= end:
                begin += len(self.spelled[token])
                token += 1
            if at >= first and token:
                partial = self.spelled[token][: end - begin] if token < len(self.ids) else b""
                self.boundaries.append(RowBoundary(token - 1, partial, at))


class TokenCovers:
    """Covers of target tokens among some of a draft's tokens: which of these begin with them.

    At a boundary of the target's text the draft model has read its own tokens up to there, or up to
    a few bytes before. The probability of a next target token is that of all draft tokens which
    continue those bytes with it, if the target would really encode their text so.

    chosen: their ids; those that occur in such texts are enough. A letter begins thousands of
    tokens, most of them of other languages.

    Example (Llama 3 drafts for Bielik; the bytes read already are ` k`): of the tokens that begin
    with ` kom`, ` kom` and ` komp` cover Bielik's `om`; ` komet` does not, as `omet` is `omet`
    to Bielik, one token.
    """

    def __init__(self, pair: Pair, chosen: Iterable[DraftId]) -> None:
        self._tokens = tokens = pair.draft.vocabulary.tokens
        self._order = TokenOrder.of(tokens, [token for token in chosen if tokens[token]])
        self._ids = np.array(self._order.ids, np.int32)
        self.bytes_of = partial(token_bytes, pair.target.vocabulary.tokens)
        self._encode = pair.target.encoder.encode
        self._special = {target: draft for draft, target in pair.roles().items()}
        self.first = lru_cache(maxsize=1 << 18)(self._first)
        self.of = lru_cache(maxsize=1 << 16)(self._of)
        self.starting_with = lru_cache(maxsize=1 << 14)(self._starting_with)

    def _first(self, data: bytes) -> TargetId | None:
        """The target token that `data` begins with, encoded by itself."""
        return next(iter(self._encode(data)), None)

    def _starting_with(self, prefix: bytes) -> Ids:
        """The draft tokens that begin with these bytes, i[n]."""
        start, end = self._order.starting_with(prefix)
        return self._ids[start:end]

    def _of(self, prefix: bytes, token: TargetId) -> Ids:
        """The draft tokens that begin with `prefix`, the last bytes of which end `token`, i[n].

        Tokens whose further bytes would change `token` are left out. A special token is covered by
        its counterpart.
        """
        data = self.bytes_of(token)
        if not data:
            special = self._special.get(token)
            return NO_IDS if special is None or prefix else np.array([special], np.int32)
        start, end = self._order.starting_with(prefix)
        added, spelled = len(prefix), self._order.spelled[start:end]
        kept = [self.first(data + spelling[added:]) == token for spelling in spelled]
        return self._ids[start:end][np.array(kept, np.bool_)]

    def guess(self, partial: bytes, row: NDArray[Any]) -> TargetId | None:
        """The most probable next target token by one row of logits f[vocabulary].

        partial: bytes with which the draft's next token begins. Only the most probable draft tokens
        are looked at.
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
