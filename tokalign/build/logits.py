"""Making the table that a logit store begins with: what a target expects at each place of a corpus.

What the table has: `tables/logit_rows.py`. The target's passes are given as a function, since
nothing here runs models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus, Stage, draw_windows, silent
from tokalign.tables.bundle import Bundle
from tokalign.tables.logit_rows import KIND, MOST_ROWS, LogitRows
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

WINDOW = 256
"""Ids that the target reads at once."""

Expect: TypeAlias = Callable[[Sequence[TargetId]], tuple[NDArray[Any], NDArray[Any]]]
"""Gives the target's `KEPT` most probable next ids i[n, KEPT] after each of n ids, and their
log-probabilities."""


def build_logit_table(
    target: Tokenizer[TargetId],
    corpus: Corpus,
    expect: Expect,
    *,
    model: str,
    language: str,
    positions: int,
    stage: Stage = silent,
) -> Bundle:
    """Have a target read about `positions` ids of a corpus, from everywhere in it.

    model: the target's name. language: of the corpus.
    Cost: that of reading as long a prompt, and 90 bytes of memory for each position and key.
    Raises: CorpusError as `Corpus.lines`, and for a corpus without a window of text.
    """
    how = {"length": WINDOW, "positions": positions, "seed": 0}
    windows = draw_windows(corpus, target, **how, stage=stage)
    ids, logprobs = list[NDArray[Any]](), list[NDArray[Any]]()
    with stage(len(windows) * WINDOW, "the target reads", "tokens") as advance:
        for window in windows:
            found, values = expect(window)
            ids.append(found)
            logprobs.append(values)
            advance(WINDOW)
    size = len(target.vocabulary)
    table = LogitRows.most_frequent(
        np.array(windows, np.uint64),
        np.stack(ids).astype(np.uint64),
        np.exp(np.stack(logprobs)),
        MOST_ROWS,
        vocabulary_size=size,
    )
    return Bundle(
        kind=KIND,
        fingerprints={"target": target.fingerprint},
        corpus=corpus.stamp,
        parameters={
            "language": language,
            "vocabulary_size": size,
            "model": model,
            "positions": len(windows) * WINDOW,
        },
        statistics={"rows": len(table)},
        sections=table.to_sections(),
    )
