"""From a pack to the dictionary of a tokenizer, without a corpus.

Word n-grams stand for the text that they were counted in. At each position of that text, the
longest n-gram of the pack that begins there gives the windows of tokens that begin in its first
word. These windows are counted as those of a corpus are (`counting/`, `dictionary/`).

Example: of 5 times " w Polsce", the pack knows 3 as " w Polsce", and of 2 only " w". For Bielik,
the windows of the first three begin with `▁w ▁Pol sce`; those of the other two end after `▁w`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tokalign.build.corpus import Corpus, Progress, Stage, batches, silent
from tokalign.build.counting.ngram_tree import grow_tree
from tokalign.build.counting.runs import open_workspace, write_run
from tokalign.build.counting.token_ngrams import Counted, Counting, count
from tokalign.build.counting.windows import WEIGHT_UNIT, IdArray, IdSpace, merge_windows
from tokalign.build.counting.workers import Task, workers
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, backoff_bundle
from tokalign.tables.bundle import Bundle
from tokalign.tables.dictionary import MAX_CONTEXT
from tokalign.tables.pack import COUNTS, Numbers, Pack, begins_text
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import Id, TargetId

_MAX_NGRAMS = 12_000_000  # of tokens, each of which takes 100 bytes
_MOST_POSITIONS = 1 << 44  # counts of windows, in thousandths, then fit into 64 bits
_USUAL = BackoffOptions()
_ORDER = MAX_CONTEXT + 1
_AT_ONCE = 1 << 14  # characters; the library takes 200 bytes for each
_SHARD, _MOST_IDS = 100_000, 1 << 22  # word n-grams, and their ids, that are sorted together
_MOST_WINDOWS = 1 << 28  # 12 GB of files; a large pack has a quarter with the ids of bytes


@dataclass(frozen=True, slots=True)
class EncodedWords:
    """Words as ids: those of word w are `ids[starts[w] : starts[w] + lengths[w]]`."""

    ids: IdArray
    starts: Numbers
    lengths: Numbers
    space: IdSpace


def compile_pack(
    target: Tokenizer[TargetId],
    bundle: Bundle,
    options: BackoffOptions = _USUAL,
    *,
    stage: Stage = silent,
) -> Bundle:
    """The dictionary of this tokenizer from a pack. Raises: BundleError for what is no pack; as
    `backoff_bundle`."""
    with open_workspace(options.workspace) as folder:
        counted = _count(target, bundle, options.min_count, folder, stage)
        return backoff_bundle(target, counted, options, language=bundle.language, stage=stage)


def _count(
    target: Tokenizer[TargetId], bundle: Bundle, min_count: float, folder: Path, stage: Stage
) -> Counted:
    """The n-grams of tokens. The pack is out of memory when they come."""
    pack = Pack.from_bundle(bundle)
    positions = positions_of(pack)
    if sum(left.sum() for left in positions) > _MOST_POSITIONS:
        raise bundle.wrong("its counts are those of no text")
    with stage(len(pack.words), "Encoding the words of the pack") as advance:
        encoded = encode_words(target, pack.words, advance)
    if _count_windows(pack, positions, encoded.lengths) > _MOST_WINDOWS:
        raise bundle.wrong(f"its n-grams have more than {_MOST_WINDOWS:,} ids of this tokenizer")
    counting = Counting(Corpus([]), target, min_count=min_count, max_ngrams=_MAX_NGRAMS)
    with workers(min(2, os.cpu_count() or 1), partial(replace, encoded)) as apply:
        runs = list[Path]()
        with stage(sum(map(len, pack.orders)), "Encoding its n-grams") as advance:
            shards = _shards(pack, positions, encoded.lengths, folder)
            del pack, positions
            for path, size in apply(_write_windows, shards):
                runs.append(path)
                advance(size)
            del shards
        with stage(1000, "Counting token n-grams") as advance:
            orders, words = count(
                counting, runs, folder, apply, lambda part: advance(int(1000 * part))
            )
    return Counted(grow_tree(orders), words, bundle.corpus)


def encode_words(
    target: Tokenizer[Id], words: Sequence[str], advance: Progress = lambda _: None
) -> EncodedWords:
    """Every word as it is encoded after other text, or at the beginning of one."""
    space, tokens = IdSpace(len(target.vocabulary)), target.vocabulary.tokens
    has_bytes = target.level is not Level.IDS_ONLY  # else nothing tells which ids are the word's
    following = [_next(word) * has_bytes for word in words]
    texts = [
        # Line ends that a normalizer takes for spaces would not be told from what comes after.
        (word + after if after else target.normalized(word))
        if not begins_text(word)
        else target.prepared(word[1:])
        for word, after in zip(words, following, strict=True)
    ]
    parts, to_remove = list[IdArray](), iter(following)
    for some in batches(texts, _AT_ONCE):
        for ids, after in zip(target.encode_parts(some), to_remove, strict=False):
            kept = _without(after, ids, tokens, space.gap)
            parts.append(np.array(kept, dtype=space.dtype))
        advance(len(some))
    counted = np.array(list(map(len, parts)))
    return EncodedWords(np.concatenate(parts), np.cumsum(counted) - counted, counted, space)


def _next(word: str) -> str:
    """What comes after a word that ends in white space, on which its encoding depends; nothing
    after one that begins a text."""
    if begins_text(word) or not word[-1].isspace():
        return ""
    return "a" if word[-1] == "\n" else f"{word[-1]}a"


def _without(after: str, ids: Sequence[int], tokens: Sequence[bytes], gap: int) -> Sequence[int]:
    """The ids of such a word, of those that were encoded with what comes `after` it. A token that
    also holds the next space, as Gemma's indentation does, is followed by a gap."""
    size, end = len(after.encode()), len(ids)
    while end and 0 < len(tokens[ids[end - 1]]) <= size:
        end -= 1
        size -= len(tokens[ids[end]])
    return [*ids[:end], gap] if size else ids[:end]


def positions_of(pack: Pack) -> list[Numbers]:
    """At how many positions of the text each n-gram is the longest one that begins there. Rounded
    counts of longer n-grams may add up to more than the n-gram's own, which is then raised."""
    counts = [COUNTS[order.levels] for order in pack.orders]
    positions = counts[-1:]
    for n in range(len(counts) - 1, 0, -1):
        longer, size = pack.orders[n], len(counts[n - 1])
        after, before = (
            np.bincount(of, weights=counts[n], minlength=size).astype(np.int64)
            for of in (longer.prefix, longer.suffix)
        )
        counts[n - 1] = np.maximum(counts[n - 1], np.maximum(after, before))
        positions.insert(0, counts[n - 1] - after)
    return positions


def _count_windows(pack: Pack, positions: Sequence[Numbers], lengths: Numbers) -> int:
    """How many windows begin in the first word of each n-gram that stands at a position."""
    windows, first = 0, np.arange(len(pack.words))
    for n, (order, times) in enumerate(zip(pack.orders, positions, strict=True)):
        first = first[order.prefix] if n else first
        windows += int(lengths[first[times > 0]].sum())
    return windows


def _shards(
    pack: Pack, positions: Sequence[Numbers], lengths: Numbers, folder: Path
) -> Iterator[Task]:
    for n, times in enumerate(positions):
        nodes = np.flatnonzero(times)
        while len(nodes):
            words, at = np.empty((len(nodes[:_SHARD]), n + 1), dtype=np.int64), nodes[:_SHARD]
            for place in range(n, -1, -1):
                words[:, place] = pack.orders[place].last[at]
                at = pack.orders[place].prefix[at]
            ids = np.cumsum(lengths[words].sum(axis=1))
            some = slice(max(1, int(np.searchsorted(ids, _MOST_IDS))))
            yield folder / f"{n + 1}-{nodes[0]}.run", words[some], times[nodes[some]]
            nodes = nodes[some.stop :]


def _write_windows(
    encoded: EncodedWords, path: Path, words: Numbers, times: Numbers
) -> tuple[Path, int]:
    """Write the windows that begin in the first of these words [n-grams, words]."""
    space, lengths = encoded.space, encoded.lengths[words]
    # Every n-gram as one row of ids in a long array, each row followed by a gap.
    ends = np.cumsum(lengths, axis=1)
    rows = np.cumsum(ends[:, -1] + 1) - ends[:, -1] - 1
    text = np.full(int((ends[:, -1] + 1).sum()) + _ORDER, space.gap, dtype=space.dtype)
    for place in range(words.shape[1]):
        which, inside = _ragged(lengths[:, place])
        begin = rows + ends[:, place] - lengths[:, place]
        text[begin[which] + inside] = encoded.ids[encoded.starts[words[which, place]] + inside]
    which, inside = _ragged(lengths[:, 0])
    ids = np.lib.stride_tricks.sliding_window_view(text, _ORDER)[rows[which] + inside]
    for place in range(1, _ORDER):
        ids[ids[:, place - 1] == space.gap, place] = space.gap
    begins = ids[:, 0] != space.gap
    windows = np.zeros(int(begins.sum()), dtype=space.windows(_ORDER))
    windows["ids"], windows["count"] = ids[begins], times[which[begins]] * WEIGHT_UNIT
    write_run(path, [merge_windows(windows)])
    return path, len(words)


def _ragged(lengths: Numbers) -> tuple[Numbers, Numbers]:
    """For each element of lists of these lengths: which list, and where in it."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
