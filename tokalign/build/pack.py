"""Making a pack: the counts of word n-grams that will be worth most in a given number of bytes.

What a pack is: `tables/pack.py`. An n-gram is worth how often it occurs, times by how much it makes
its last word more probable than the n-gram without its first word does. Those that are worth most
for their bytes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tokalign.build.corpus import Corpus, Stage, silent
from tokalign.build.counting.ngram_tree import Floats, NgramLevel, smooth
from tokalign.build.counting.token_ngrams import Counted, Counting, count_corpus
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions
from tokalign.build.dictionary.pruning import RARELY_SEEN, Mask, fill
from tokalign.errors import UsageError
from tokalign.tables.bundle import Bundle, encode_bundle
from tokalign.tables.pack import KIND, MAX_NGRAMS, MAX_ORDER, Pack, WordNgrams, levels_of

PACK_BYTES = 12_000_000

RARE_ORDERS = 2
"""Words and pairs are kept from a count of 1 on: a token may be frequent in words that are rare."""

_BITS = 25.0, 15.0, 9.0  # about what an n-gram of 1, of 2, of more words takes
_BITS_INSIDE = 8.0  # what knowing a word saves inside it
_TRIALS = 5
_FULL = 0.97  # of the bytes allowed; a pack that takes this share is full


def build_pack(
    corpus: Corpus, options: BackoffOptions, *, language: str, stage: Stage = silent
) -> Bundle:
    """The pack of a corpus. options: the size, the least count, and what counting takes. Raises: as
    `pack_bundle`."""
    counted = count_corpus(
        counting_words(corpus, options.min_count),
        memory=options.memory,
        workspace=options.workspace,
        stage=stage,
    )
    return pack_bundle(counted, options, language=language, stage=stage)


def counting_words(corpus: Corpus, min_count: float) -> Counting:
    """What a pack counts; see `Counting`."""
    return Counting(
        corpus,
        None,
        max_order=MAX_ORDER,
        min_count=min_count,
        rare_orders=RARE_ORDERS,
        max_ngrams=MAX_NGRAMS,
    )


def pack_bundle(
    counted: Counted,
    options: BackoffOptions,
    *,
    language: str,
    stage: Stage = silent,
) -> Bundle:
    """The most valuable n-grams in `options.max_bytes`. Raises: UsageError if nothing fits."""
    levels, max_bytes, best = counted.levels, options.max_bytes, None
    worth, room = _worth(levels), 8.0 * max_bytes
    with stage(_TRIALS, "Choosing n-grams") as advance:
        for _ in range(_TRIALS):
            kept = fill(partial(_keep, levels, worth), _bits, room)
            if not any(map(np.any, kept[:1])):
                break
            pack = select(counted.words, levels, kept)
            bundle = Bundle(
                kind=KIND,
                fingerprints={},
                corpus=counted.stamp,
                parameters={
                    "language": language,
                    "min_count": options.min_count,
                    "max_bytes": max_bytes,
                    "words": len(pack.words),
                    "max_order": len(pack.orders),
                },
                statistics={
                    "ngrams": sum(map(len, pack.orders)),
                    **{f"ngrams_of_{n}": len(some) for n, some in enumerate(pack.orders, start=1)},
                },
                sections=pack.to_sections(),
            )
            size = len(encode_bundle(bundle))
            advance(1)
            if size <= max_bytes:
                best = bundle
                if size > _FULL * max_bytes or _bits(_keep(levels, worth, 0)) <= room:
                    break
            room *= (1 + _FULL) / 2 * max_bytes / size
    if best is None:
        raise UsageError(f"{max_bytes} bytes hold no pack of this corpus; give more, or more text")
    return best


def _worth(levels: Sequence[NgramLevel]) -> list[Floats]:
    """What each n-gram of each order saves for each bit that it takes."""
    probabilities, _ = smooth(levels)
    often = [np.maximum(level.counts - RARELY_SEEN, 0) for level in levels]
    worth = [some * np.float32(_BITS_INSIDE / _BITS[0]) for some in often[:1]]
    for n, level in enumerate(levels[1:], start=1):
        times = probabilities[n] / probabilities[n - 1][level.suffix]
        surer = np.log2(times.astype(np.float64)).astype(np.float32)  # as `number_predictions`
        worth.append(often[n] * surer / np.float32(_BITS[min(n, len(_BITS) - 1)]))
    return worth


def _bits(kept: Sequence[Mask]) -> float:
    return sum(float(mask.sum()) * _BITS[min(n, len(_BITS) - 1)] for n, mask in enumerate(kept))


def _keep(levels: Sequence[NgramLevel], worth: Sequence[Floats], price: float) -> list[Mask]:
    """Those that are worth more than their price, with their prefixes and suffixes."""
    kept = [values > price for values in worth]
    for n in range(len(levels) - 1, 0, -1):
        for shorter in (levels[n].prefix, levels[n].suffix):
            kept[n - 1][shorter[kept[n]]] = True
    return kept


def select(words: Sequence[str], levels: Sequence[NgramLevel], kept: Sequence[Mask]) -> Pack:
    """The pack of these n-grams, in its order: see `tables/pack.py`."""
    orders = list[WordNgrams]()
    numbers = first = np.zeros(0, dtype=np.int64)
    for n, (level, mask) in enumerate(zip(levels, kept, strict=True)):
        nodes = np.flatnonzero(mask)
        if not len(nodes):
            break
        prefix, suffix = level.prefix[nodes].astype(np.int64), level.suffix[nodes].astype(np.int64)
        last, counted = level.last[nodes].astype(np.int64), levels_of(level.counts[nodes])
        if n:
            prefix, suffix, last = numbers[prefix], numbers[suffix], first[last]
        order = np.lexsort((suffix, -counted, prefix)) if n else np.argsort(-counted, kind="stable")
        numbers = np.zeros(len(level), dtype=np.int64)
        numbers[nodes[order]] = np.arange(len(nodes))
        if not n:
            first, last = numbers, numbers[nodes]
            named = [words[word] for word in level.last[nodes[order]]]
        orders.append(
            WordNgrams(
                prefix=prefix[order], suffix=suffix[order], last=last[order], levels=counted[order]
            )
        )
    return Pack(named, orders)
