"""A table of what a target finds likely, made by having it read a corpus.

It saves what the logit store would otherwise have to learn in each conversation anew. Each place of
the text gives a row under the last one, two and three ids; rows under equal ids are averaged, and
those are kept that came most often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.errors import CorpusError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.lookup import SLOTS, tail_of
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.tables.bundle import Bundle
from tokalign.tables.logit_rows import KEPT, KIND, LONGEST_KEY, LogitRows, codes_of, keys_of
from tokalign.tokenizer.vocabulary import TargetId
from tokalign.train.labelled_corpus import draw_windows

ROWS = SLOTS // 2
"""Rows of a table, 3.1 MB: about a fifth of them fall to slots of a store that others fill."""

WINDOW = 256
"""Ids that the target reads at once."""


_STEP = 128
"""Rows at once: their logits take 66 MB with 128,256 ids in float32."""


def build_logit_table(
    target: LanguageModel[TargetId],
    corpus: Corpus,
    *,
    language: str,
    positions: int,
    stage: Stage = silent,
) -> Bundle:
    """Have a target read about `positions` ids of a corpus, from everywhere in it.

    language: of the corpus.
    Cost: that of reading as long a prompt, and 90 bytes of memory for each position and key.
    Raises: CorpusError as `Corpus.lines`, and for a corpus without a window of text.
    """
    with stage(2 * corpus.size, "reading the corpus") as advance:
        windows = draw_windows(
            corpus,
            target.tokenizer,
            length=WINDOW,
            positions=positions,
            seed=0,
            progress=advance,
        )
    if not windows:
        raise CorpusError(f"the corpus has fewer than {WINDOW} tokens; give more text")
    gathered = GatheredRows()
    with stage(len(windows) * WINDOW, "the target reads") as advance:
        for window in windows:
            session = TargetModelSession(target.model, rewinds=False)
            for begin in range(0, WINDOW, _STEP):
                # Beyond reading the text, this computes the output layer for every id.
                text = window[: begin + _STEP]
                logits = session.logits(text, last=len(text) - begin)
                likely = session.top_k(logits, KEPT, normalized=False)
                session.start(*likely)
                gathered.learn(text, *[np.array(array) for array in likely])
                advance(len(text) - begin)
    size = len(target.tokenizer.vocabulary)
    table = gathered.most_frequent(ROWS, vocabulary_size=size)
    return Bundle(
        kind=KIND,
        fingerprints={"target": target.tokenizer.fingerprint},
        corpus=corpus.stamp,
        parameters={
            "language": language,
            "vocabulary_size": size,
            "model": "" if target.folder is None else target.folder.name,
            "positions": len(windows) * WINDOW,
        },
        statistics={"rows": len(table)},
        sections=table.to_sections(),
    )


class GatheredRows:
    """All rows of some texts."""

    def __init__(self) -> None:
        self._keys: list[NDArray[np.uint64]] = []
        self._ids: list[NDArray[Any]] = []
        self._logprobs: list[NDArray[Any]] = []

    def learn(self, text: Sequence[TargetId], likely: NDArray[Any], logprobs: NDArray[Any]) -> None:
        """Gather the rows after the last ids of `text`: ids i[n, KEPT] and log-probabilities."""
        ends = range(len(text) - len(likely) + 1, len(text) + 1)
        tails = [tail_of(text[max(0, end - LONGEST_KEY) : end]) for end in ends]
        self._keys.append(keys_of(np.array(tails, dtype=np.uint64)))
        self._ids.append(likely)
        self._logprobs.append(logprobs)

    def most_frequent(self, most: int, *, vocabulary_size: int) -> LogitRows:
        """The rows of the `most` keys that came most often, averaged, the rarest first.

        Where rows are written one after the other, the frequent ones then come last and stay.
        vocabulary_size: ids from this on, with which models pad their vocabularies, are left out.
        """
        keys = np.concatenate(self._keys, axis=1).reshape(-1)
        different, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
        kept = np.sort(np.argsort(-counts, kind="stable")[:most])
        place = np.full(len(different), -1)
        place[kept] = np.arange(len(kept))
        ids = np.tile(np.concatenate(self._ids), (LONGEST_KEY, 1))
        probabilities = np.tile(np.exp(np.concatenate(self._logprobs)), (LONGEST_KEY, 1))
        rows = np.repeat(place[number.reshape(-1)], KEPT)
        known = (rows >= 0) & (ids.reshape(-1) < vocabulary_size)
        found_ids, found = _top(
            rows[known], ids.reshape(-1)[known], probabilities.reshape(-1)[known], len(kept)
        )
        with np.errstate(divide="ignore"):
            codes = codes_of(np.log(found / counts[kept][:, None]))
        order = np.argsort(counts[kept], kind="stable")
        return LogitRows(different[kept][order], found_ids[order], codes[order])


def _top(
    rows: NDArray[Any], ids: NDArray[Any], probabilities: NDArray[Any], count: int
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """For each of `count` rows the `KEPT` ids with the largest sums, and these; 0 for no more."""
    pairs, number = np.unique(
        rows.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64), return_inverse=True
    )
    sums = np.bincount(number.reshape(-1), weights=probabilities, minlength=len(pairs))
    row = (pairs >> np.uint64(32)).astype(np.int64)
    order = np.lexsort((-sums, row))
    row = row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    best = rank < KEPT
    found = np.zeros((count, KEPT), dtype=np.uint32)
    likely = np.zeros((count, KEPT))
    found[row[best], rank[best]] = (pairs[order] & np.uint64(0xFFFFFFFF))[best]
    likely[row[best], rank[best]] = sums[order][best]
    return found, likely
