"""The dictionary as DictSpec publishes it (Syvokon, UNLP 2026, aclanthology.org/2026.unlp-1.15).

Count the word n-grams of order 1-3, keep the most frequent, write each as the target's tokens. For
every proper prefix of those tokens, each n-gram that goes on from there expects its own rest, with
its count as mass; the rest with the most mass is kept if it has at least `p_min` of all of it.

Example: " w Polsce" 60 times and " w Polskę" 40 times, as ` w` + ` Pol` + `sce` or `skę`: behind
` w` and behind ` w Pol` the rest of " w Polsce" is expected, each with probability 0.6.

An n-gram counts once more inside every longer n-gram, and text that ends a word where the prefix
ends takes no mass away: the abstract leaves this open, and this reading gives the figures known for
Polish (`benchmarks/dictionary_build.py` prints them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice

from tokalign.tables.dictionary import MAX_CONTEXT, MAX_CONTINUATION, Ids
from tokalign.tables.dictspec import DictSpecTable
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Entries = Mapping[Ids, tuple[Ids, float]]


def find_continuations(
    ngrams: Iterable[tuple[tuple[str, ...], int]],
    target: Tokenizer[TargetId],
    *,
    p_min: float,
    progress: Callable[[int], None] = lambda _: None,
) -> DictSpecTable:
    """Build the dictionary of one target tokenizer from word n-grams with their counts.

    p_min: the least probability of a continuation, in (0, 1].
    progress: called with the number of n-grams encoded since the last call.
    Cost: about 30 s and 0.4 GB per million n-grams.
    """
    entries = best_continuations(_encode(ngrams, target, progress), p_min=p_min)
    return DictSpecTable.from_entries(entries, len(target.vocabulary))


def _encode(
    ngrams: Iterable[tuple[tuple[str, ...], int]],
    target: Tokenizer[TargetId],
    progress: Callable[[int], None],
) -> Iterator[tuple[Ids, int]]:
    """n-grams as target ids, as they stand in running text: with a space before each word."""
    space = "" if target.spec.dummy_prefix else " "
    iterator = iter(ngrams)
    while batch := list(islice(iterator, 1 << 13)):
        encoded = target.encode_batch([space + " ".join(words) for words, _ in batch])
        for ids, (_, count) in zip(encoded, batch, strict=True):
            yield tuple(ids), count
        progress(len(batch))


def best_continuations(sequences: Iterable[tuple[Ids, int]], *, p_min: float) -> Entries:
    """For each proper prefix of the sequences the rest with the most mass, if it is `p_min` of all.

    Prefixes and rests have at most 8 ids; a longer rest is cut to 8. Of rests with equal mass the
    one with the lower ids is chosen.
    Cost: one sort, then one pass per prefix length over neighbours.
    """
    entries: dict[Ids, tuple[Ids, float]] = {}
    ordered = sorted(sequences)
    for length in range(1, MAX_CONTEXT + 1):
        ordered = [(ids, count) for ids, count in ordered if len(ids) > length]
        for prefix, group in groupby(ordered, key=lambda sequence: sequence[0][:length]):
            best, probability = _best_rest(group, length)
            if probability >= p_min:
                entries[prefix] = best, probability
    return entries


def _best_rest(sequences: Iterable[tuple[Ids, int]], length: int) -> tuple[Ids, float]:
    """What most often follows the first `length` ids, and its share of the mass."""
    mass: defaultdict[Ids, int] = defaultdict(int)
    for ids, count in sequences:
        mass[ids[length : length + MAX_CONTINUATION]] += count
    best = min(mass, key=lambda rest: (-mass[rest], rest))
    return best, mass[best] / sum(mass.values())
