"""What the target finds likely after every id of a given text, such as a prompt that is cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tokalign.runtime.interfaces import RowStore
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_STEP = 128
"""Rows at once: their logits take 66 MB with 128,256 ids in float32."""


def learn_text(
    session: TargetModelSession,
    ids: Sequence[TargetId],
    store: RowStore,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Read `ids` and have the store keep the row after each of them.

    Beyond reading the text, this computes the output layer for every id instead of the last one.
    advance: called with the number of ids of each step.
    """
    for begin in range(0, len(ids), _STEP):
        part = ids[begin : begin + _STEP]
        logits = session.logits(ids[: begin + len(part)], last=len(part))
        likely = session.likeliest(logits, store.width, normalized=False)
        session.start(*likely)
        chain = TokenTree.chain(part[1:], "")
        store.learn(ids[: begin + 1], chain, *[np.array(array) for array in likely])
        advance(len(part))
