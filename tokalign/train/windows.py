"""A corpus as windows of ids: paragraphs in a random order, joined, and cut at one length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from random import Random

from tokalign.build.corpus import Corpus, Progress
from tokalign.runtime.chat import with_bos
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_MARGIN = 1.3
"""How many times the text is drawn that should be enough, by `_BYTES_PER_TOKEN`."""

_BYTES_PER_TOKEN = 5.0
"""Of text; more than any tokenizer in use has on average, so that it never runs short."""


def draw_windows(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    length: int,
    positions: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> list[list[TargetId]]:
    """Draw paragraphs from everywhere in a corpus and cut them into windows.

    length: ids in a window, BOS included if the tokenizer adds one. positions: about how many ids
    to draw, all windows together; fewer if the corpus has fewer.
    progress: called with bytes of the corpus on disk, of which two readings are made: one to learn
    its size, one to draw. Only what is drawn is kept in memory.
    Raises: CorpusError as `Corpus.lines`.
    """
    for _ in corpus.lines(progress):
        pass
    share = positions * _BYTES_PER_TOKEN * _MARGIN / corpus.text_bytes
    random = Random(seed)
    drawn = [line for line in corpus.lines(progress) if random.random() < share]
    random.shuffle(drawn)
    ids = chain.from_iterable(tokenizer.encode(line + "\n") for line in drawn)
    opening = with_bos(tokenizer, [])
    windows: list[list[TargetId]] = []
    while len(windows) * length < positions and (
        window := [*opening, *_take(ids, length, opening)]
    ):
        if len(window) < length:
            break
        windows.append(window)
    return windows


def _take(ids: Iterator[TargetId], length: int, opening: list[TargetId]) -> Iterator[TargetId]:
    for _ in range(length - len(opening)):
        token = next(ids, None)
        if token is None:
            return
        yield token
