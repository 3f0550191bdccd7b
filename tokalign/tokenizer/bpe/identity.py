"""Which merges say no more than the tokens and their order do.

Files of different kinds spell the same merges differently. tiktoken's and SentencePiece's rank the
tokens, which stands for every way to make a token from two others; a tokenizer.json may list one
way for each. Only one way is ever taken, because nothing that lies around a token has a part in how
it is made (`validity.py`, corollary II). So the two are the same encoding if every token is made
by the one way that is listed, and by tokens that come before it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from tokalign.tokenizer.bpe.validity import Merges

Ints = NDArray[np.int64]


def are_implied(tokens: Sequence[bytes], triples: Ints, apart: Set[int]) -> bool:
    """Whether merges are those that the tokens imply, ranked as their results first appear.

    triples: (left, right, result) in order of rank, i64[merges, 3].
    apart: the ids that no merge takes part in, such as byte fallback and added tokens.
    Cost: about 10 µs a merge.
    """
    results = triples[:, 2]
    starts = np.flatnonzero(np.diff(results, prepend=-1))
    made = np.zeros(len(tokens), dtype=bool)
    made[results] = True
    if np.count_nonzero(made) < len(starts):
        return False  # the ways to make a token have ranks with others between them
    if len(starts) == len(results):
        return _all_made(triples, len(tokens))
    literal = {token for i, token in enumerate(tokens) if i not in apart}
    listed: list[int] = np.diff(starts, append=len(results)).tolist()
    return listed == [_count_ways(tokens[i], literal) for i in results[starts]]


def _count_ways(token: bytes, literal: Set[bytes]) -> int:
    """How many ways there are to cut a token into two tokens."""
    cuts = range(1, len(token))
    return sum(token[:cut] in literal and token[cut:] in literal for cut in cuts)


def _all_made(triples: Ints, size: int) -> bool:
    """Whether the merges make each result from its own symbols, and from results before it.

    triples: one for each result, in order of rank. size: of the vocabulary.
    Cost: 1 s for 150,000 merges.
    """
    left, right, result = triples.T
    rank = np.full(size, -1, dtype=np.int64)
    rank[result] = np.arange(len(triples))
    repeats = np.count_nonzero(rank >= 0) < len(result)
    if repeats or (np.maximum(rank[left], rank[right]) >= rank[result]).any():
        return False
    merges, symbols = Merges.from_triples(triples), dict[int, list[int]]()
    for first, second, whole in triples.tolist():
        symbols[whole] = symbols.get(first, [first]) + symbols.get(second, [second])
        if merges.apply(symbols[whole]).ids != [whole]:
            return False
    return True
