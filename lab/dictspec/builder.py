"""The dictionary of DictSpec (Syvokon, UNLP 2026, aclanthology.org/2026.unlp-1.15), re-created.

Count the word n-grams of order 1-3, keep the most frequent, and encode each with the target's
tokenizer. Every place inside an n-gram cuts it into a *prefix* and a *rest*, each of at most 8 ids.
For every prefix find the id that most probably follows it. If its probability is at least `p_min`,
store the most frequent rest that begins with this id.

The probability of an id is its share among the n-grams of the same order, as in Table 1 of the
paper: `персональний комп'ютер` 12,400 times and `персональний комунікатор` 180 times give the rest
`п' ют ер` the probability 98.6 %, whatever longer n-grams begin the same way. The order is the one
in which the id is most probable, the longest of these.

Example (Bielik): "w Polsce" 60 times and "w Polskę" 40 times. The tokens are `▁w ▁Pol s ce` and
`▁w ▁Pol sk ę`. After `▁w` the id `▁Pol` is certain and `s ce` the more frequent way to go on. After
`▁w ▁Pol` the rest of "w Polsce" is stored with probability 0.6. After `▁w ▁Pol s` only `ce` can
follow, and after `▁w ▁Pol sk` only `ę`.

`lab/dictspec.md` says what the paper leaves open and how it is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import NamedTuple

from lab.dictspec.table import MAX_CONTINUATION, DictSpecTable
from tokalign.tables.dictionary import MAX_CONTEXT, Ids
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

Entries = Mapping[Ids, tuple[Ids, float]]
"""Prefix -> the rest that is stored, and the probability of its first id."""

_BATCH = 1 << 10


class EncodedNgram(NamedTuple):
    """A word n-gram as target ids. order: how many words it has. occurrences: in the corpus."""

    ids: Ids
    order: int
    occurrences: int


Choose = Callable[[Iterable[EncodedNgram], int], tuple[Ids, float]]
"""From n-grams that begin with the same `n` ids: the rest that is stored, and a probability."""


def most_probable_next_id(ngrams: Iterable[EncodedNgram], length: int) -> tuple[Ids, float]:
    """The most frequent rest that begins with the most probable next id, and that id's probability.

    length: how many ids come before. Ties go to the n-grams of the highest order, then to the rest
    with more ids.
    """
    of_order: defaultdict[int, int] = defaultdict(int)
    of_id: defaultdict[tuple[int, TargetId], int] = defaultdict(int)
    of_rest: defaultdict[tuple[int, Ids], int] = defaultdict(int)
    for ids, order, occurrences in ngrams:
        of_order[order] += occurrences
        of_id[order, ids[length]] += occurrences
        of_rest[order, ids[length : length + MAX_CONTINUATION]] += occurrences
    probabilities = {(order, one): count / of_order[order] for (order, one), count in of_id.items()}
    order, following = max(probabilities, key=lambda at: (probabilities[at], *at))
    _, _, rest = max(
        (count, len(rest), rest)
        for (its_order, rest), count in of_rest.items()
        if (its_order, rest[0]) == (order, following)
    )
    return rest, probabilities[order, following]


def find_continuations(
    ngrams: Iterable[tuple[tuple[str, ...], int]],
    target: Tokenizer[TargetId],
    *,
    p_min: float,
    choose: Choose = most_probable_next_id,
) -> DictSpecTable:
    """Build the dictionary of one target tokenizer from word n-grams with their counts.

    p_min: the least probability of the first id of a rest that is stored, in (0, 1].
    choose: another reading of the paper.
    Cost: about 35 s and 0.5 GB per million n-grams.
    """
    return DictSpecTable(best_continuations(_encode(ngrams, target), p_min=p_min, choose=choose))


def _encode(
    ngrams: Iterable[tuple[tuple[str, ...], int]],
    target: Tokenizer[TargetId],
) -> Iterator[EncodedNgram]:
    """Encode n-grams as they stand in running text: with a space before each word."""
    space = "" if target.spec.dummy_prefix else " "
    iterator = iter(ngrams)
    while batch := list(islice(iterator, _BATCH)):
        encoded = target.encode_batch([space + " ".join(words) for words, _ in batch])
        for ids, (words, count) in zip(encoded, batch, strict=True):
            yield EncodedNgram(tuple(ids), len(words), count)


def best_continuations(
    ngrams: Iterable[EncodedNgram], *, p_min: float, choose: Choose = most_probable_next_id
) -> Entries:
    """The rest of every prefix whose next id is as probable as `p_min`.

    Of a longer prefix the last 8 ids are the key, of a longer rest the first 8 are stored.
    Cost: one sort, then one pass over neighbours per length of a prefix.
    """
    entries: dict[Ids, tuple[Ids, float]] = {}
    ordered = sorted(ngrams)
    for length in range(1, MAX_CONTEXT + 1):
        ordered = [ngram for ngram in ordered if len(ngram.ids) > length]
        if length == MAX_CONTEXT:
            ordered = sorted(chain.from_iterable(map(_tails, ordered)))
        for prefix, group in groupby(ordered, key=lambda ngram: ngram.ids[:length]):
            rest, probability = choose(group, length)
            if probability >= p_min:
                entries[prefix] = rest, probability
    return entries


def _tails(ngram: EncodedNgram) -> Iterator[EncodedNgram]:
    """What an n-gram has from each place on that the longest key fits before: a key and its rest.

    Later ids do not matter, and with them a long n-gram would take the square of its length.
    """
    for start in range(len(ngram.ids) - MAX_CONTEXT):
        yield ngram._replace(ids=ngram.ids[start : start + MAX_CONTEXT + MAX_CONTINUATION])
