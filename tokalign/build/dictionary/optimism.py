"""How much too sure a table would be in other text, learned from the counts alone.

The best next id of a context is the best one in the text that was counted, so its probability there
is too high for any other text. By how much depends on the corpus, the tokenizer and the length of
the context, not on the language alone. So it is estimated for every table by *leaving one out*:

    Take one occurrence of an id away from the counts. Which is then the longest stored context
    before it that still knows an answer? How probable is that answer, and is it that id?

Summed over all occurrences, this says how often the answers of each length are right in text that
was not counted. The *optimism* of a length is by how much the log-odds of its answers have to be
lowered so that their probabilities add up to the number of right ones.

Example: a context was counted three times and always went on with "s". Each of the three
occurrences is an answer "s" of a context that was counted twice, and right. Another context went on
with "s" twice and with "m" once. Taking "m" away leaves the same counts, and an answer that is
wrong. Without the wrong ones, contexts that were counted twice would look almost certain.

Nothing is read again: how often the longest stored context is this one follows from the counts of
the n-grams one id longer, as in `pruning.occurrences`. Two things are approximated. The last
ids of n-grams too rare to be kept are not known, so they are taken to be those that the shorter
context expects. And every occurrence is taken to count 1, whatever the weight of its file.
Source: leaving-one-out, Ney, Essen and Kneser (1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokalign.build.dictionary.ngram_tree import (
    CONCENTRATION,
    DISCOUNT,
    MISSING,
    Floats,
    Level,
    Smoothed,
)
from tokalign.build.dictionary.pruning import Mask, Predictions

USUAL = 0.5
"""The optimism before anything is known. Lines held out of corpora of 1.5 to 47 million characters,
in four languages, show 0.4 to 0.8 over all lengths."""

_EVIDENCE = 100
"""How many occurrences of an even guess `USUAL` stands for."""

_LEAST, _MOST = -1.0, 4.0
_DIGITS = 2  # of an optimism, so that the last bits of a sum do not matter
_STEPS = 30
_CLEAREST = 0.001, 0.995

_Weights = NDArray[np.float64]
_Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of contexts of one length in text that was not counted.

    claimed: f64[answers], the probability of each. right: whether it is the next id. times: how
    often it is given.
    """

    claimed: _Weights
    right: Mask
    times: _Weights


@dataclass(frozen=True, slots=True)
class _Stored:
    """The stored contexts of one length, as indices, and their two most probable n-grams.

    best, second: indices into the level of the n-grams that are one id longer, or MISSING.
    dies: whether no answer is left if one occurrence of the best is taken away.
    """

    contexts: _Nodes
    best: _Nodes
    second: _Nodes
    dies: Mask


def leave_one_out(
    levels: Sequence[Level],
    smoothed: Smoothed,
    ranked: Sequence[Sequence[Predictions]],
    stored: Sequence[Mask],
) -> list[Answers]:
    """The answers of contexts of each length from 1 on.

    smoothed: from `smooth`. ranked: the most probable ids and those that come second, by
    length. stored: which contexts the table has, by length.
    """
    # The least count over all lengths: a longer n-gram is never more frequent than what is in it.
    least = min(float(level.counts.min()) for level in levels if len(level))
    asked = [_Asked(levels, smoothed, length, least) for length in range(1, len(levels))]
    known = [
        one.stored(mask, first, second)
        for one, mask, first, second in zip(asked, stored, *ranked[:2], strict=True)
    ]
    return [
        one.answers(own, longer)
        for one, own, longer in zip(asked, known, [*known[1:], None], strict=True)
    ]


class _Asked:
    """Contexts of one length, and what comes after them. least: the least count of an n-gram."""

    def __init__(
        self,
        levels: Sequence[Level],
        smoothed: Smoothed,
        length: int,
        least: float,
    ) -> None:
        self._contexts, self._continued = levels[length - 1], levels[length]
        self._longer = levels[length + 1] if length + 1 < len(levels) else None
        self._shorter, self._likely = smoothed[0][length - 1], smoothed[0][length]
        self._weights = smoothed[1][length - 1]
        self._least = least

    def stored(self, mask: Mask, first: Predictions, other: Predictions) -> _Stored:
        contexts = np.flatnonzero(mask)
        best = self._continued.find(contexts, first.ids[contexts])
        second = self._continued.find(contexts, other.ids[contexts])
        second[other.probabilities[contexts] == 0] = MISSING
        rare = self._continued.counts[best] - 1 < self._least
        return _Stored(contexts, best, second, rare & (second == MISSING))

    def answers(self, own: _Stored, longer: _Stored | None) -> Answers:
        """What these contexts answer where no longer one does. longer: those of one id more."""
        at, best, second = own.contexts, own.best, own.second
        totals = self._contexts.counts.astype(np.float64)
        rights = self._continued.counts.astype(np.float64)
        if longer is not None and self._longer is not None:
            self._leave_out(totals, rights, own, longer, self._longer)
        right_times = np.maximum(rights[best], 0)
        wrong_times = np.maximum(totals[at] - right_times, 0)
        rarer = self._continued.counts[best] - 1
        itself = np.where(rarer >= self._least, self._claim(at, best, rarer), 0)
        instead = np.where(second >= 0, self._claim(at, second, self._continued.counts[second]), 0)
        alive = ~own.dies
        claimed = [
            self._claim(at, best, self._continued.counts[best]),
            np.maximum(itself, instead)[alive],
        ]
        right = [np.zeros(len(at), dtype=bool), (itself >= instead)[alive]]
        return Answers(
            np.clip(np.concatenate(claimed), *_CLEAREST),
            np.concatenate(right),
            np.concatenate([wrong_times, right_times[alive]]),
        )

    def _claim(self, contexts: _Nodes, ngrams: _Nodes, counts: Floats) -> _Weights:
        """p of these n-grams with these counts, after contexts that were counted once less."""
        total = self._contexts.counts[contexts].astype(np.float64) + CONCENTRATION
        given = self._weights[contexts] * total * self._shorter[self._continued.suffix[ngrams]]
        return np.asarray((np.maximum(counts - DISCOUNT, 0) + given) / (total - 1))

    def _leave_out(
        self, totals: _Weights, rights: _Weights, own: _Stored, stored: _Stored, ngrams: Level
    ) -> None:
        """Take away the occurrences at which a longer context answers.

        totals: of each context. rights: of each n-gram that continues one. stored: the longer
        contexts. ngrams: what continues them.
        """
        suffixes = self._continued.suffix  # of the longer contexts
        is_stored = np.zeros(len(self._continued), dtype=bool)
        is_stored[stored.contexts] = True
        answered = is_stored[ngrams.prefix]
        answered[stored.best[stored.dies]] = False
        prefixes, ends = ngrams.prefix[answered], ngrams.suffix[answered]
        counts = ngrams.counts[answered]
        rights -= np.bincount(ends, counts, minlength=len(rights))
        totals -= np.bincount(suffixes[prefixes], counts, minlength=len(totals))

        kept = np.bincount(ngrams.prefix, ngrams.counts, minlength=len(is_stored))
        rare = np.where(is_stored, np.maximum(self._continued.counts - kept, 0), 0)
        totals -= np.bincount(suffixes, rare, minlength=len(totals))
        expected = np.bincount(ngrams.prefix, self._likely[ngrams.suffix], minlength=len(is_stored))
        best_of = np.full(len(self._contexts), MISSING)
        best_of[own.contexts] = own.best
        longer = np.flatnonzero(rare > 0)
        best = best_of[suffixes[longer]]
        longer, best = longer[best >= 0], best[best >= 0]
        unseen = ngrams.find(longer, self._continued.last[best]) == MISSING
        longer, best = longer[unseen], best[unseen]
        likely = self._likely[best]
        share = likely / np.maximum(1 - expected[longer], likely)
        rights -= np.bincount(best, rare[longer] * share, minlength=len(rights))


def optimism_of(answers: Answers) -> float:
    """By how much the log-odds of these answers are too high; `USUAL` where there are none."""
    odds = np.append(np.log(answers.claimed) - np.log1p(-answers.claimed), 0)
    times = np.append(answers.times, _EVIDENCE)
    right = answers.times[answers.right].sum() + _EVIDENCE / (1 + np.exp(USUAL))
    low, high = _LEAST, _MOST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if (times / (1 + np.exp(middle - odds))).sum() > right:
            low = middle
        else:
            high = middle
    return float(round(low, _DIGITS))
