"""The counted n-grams of one order as a file, until it is known how many of them there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokalign.build.counting.runs import REMEDY
from tokalign.build.counting.windows import IdSpace, TokenNgrams, join
from tokalign.storage import unwritable

WEIGHT_UNIT = 1000  # weights and counts are kept in thousandths
_MOST_RAISED = 1 << 16  # how often the least count is raised by 1 at most
_AT_ONCE = 1 << 18  # n-grams that are read at once


class NgramFile:
    """The n-grams of one order that are frequent enough so far, in a file."""

    def __init__(self, path: Path, space: IdSpace, order: int, least: int) -> None:
        """least: the least count, in thousandths."""
        self._path, self._least = path, least
        self._dtype = space.windows(order)
        nothing = np.zeros(0, dtype=self._dtype)
        self._held = TokenNgrams(nothing["ids"].reshape(-1, order), nothing["count"])
        self._raised = np.zeros(_MOST_RAISED + 2, dtype=np.int64)
        self._path.unlink(missing_ok=True)

    def add(self, ngrams: TokenNgrams) -> None:
        whole, self._held = join(self._held, ngrams)
        self._write(whole)

    def finish(self) -> NDArray[np.int64]:
        """Add the last one. Returns, by r, how many n-grams need the least count raised by r to be
        left out."""
        self._write(self._held)
        return self._raised

    def _write(self, ngrams: TokenNgrams) -> None:
        kept = ngrams[ngrams.counts >= self._least]
        above = (kept.counts - self._least) // WEIGHT_UNIT + 1
        above = np.minimum(above, _MOST_RAISED + 1).astype(np.int64)
        self._raised += np.bincount(above, minlength=_MOST_RAISED + 2)
        rows = np.zeros(len(kept), dtype=self._dtype)
        rows["ids"], rows["count"] = kept.ids, kept.counts
        try:
            with self._path.open("ab") as file:
                file.write(rows.view(np.uint8).data)
        except OSError as error:
            raise unwritable(self._path, error, REMEDY) from error

    def kept(self, more: int, *, whole: bool) -> TokenNgrams:
        """Those that are frequent enough if the least count is raised by so much.

        Cost: 30 bytes per n-gram.
        """
        kept = [np.zeros(0, dtype=self._dtype)]
        with self._path.open("rb") as file:
            while data := file.read(_AT_ONCE * self._dtype.itemsize):
                rows = np.frombuffer(data, dtype=self._dtype)
                kept.append(rows[rows["count"] >= self._least + more])
        rows = np.concatenate(kept)
        counts = rows["count"] // WEIGHT_UNIT if whole else rows["count"] / WEIGHT_UNIT
        return TokenNgrams(np.ascontiguousarray(rows["ids"]), counts)
