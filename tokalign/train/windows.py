"""A corpus as windows of ids: paragraphs in a random order, joined, and cut at one length."""

from __future__ import annotations

from itertools import chain, islice
from random import Random

from tokalign.build.corpus import Corpus, Progress
from tokalign.runtime.chat import with_bos
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_BYTES_DRAWN_PER_TOKEN = 6.5
"""Bytes of text. Tokenizers in use have 3 to 5 bytes in a token, so enough is drawn."""


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
    share = positions * _BYTES_DRAWN_PER_TOKEN / corpus.text_bytes
    random = Random(seed)
    drawn = [line for line in corpus.lines(progress) if random.random() < share]
    random.shuffle(drawn)
    ids = chain.from_iterable(tokenizer.encode(line + "\n") for line in drawn)
    opening = with_bos(tokenizer, [])
    windows: list[list[TargetId]] = []
    while len(windows) * length < positions:
        window = [*opening, *islice(ids, length - len(opening))]
        if len(window) < length:
            break
        windows.append(window)
    return windows
