"""Counting the token n-grams of a corpus of any size, in bounded memory, on all cores.

All steps of a count (`steps.py`) with one share each, one after the other. The tasks inside a step
(`run_files.py`) depend on their shard or range alone and leave one file each, so they are done by
several processes, and a killed count resumes from the files that are there (`workspace.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tokalign.build.corpus import Corpus
from tokalign.build.counting.memory_budget import MEMORY, plan_processes
from tokalign.build.counting.shares import Chunks, Counting, Share, read_stamps
from tokalign.build.counting.steps import collect, count, cut, encode, prune
from tokalign.build.counting.windows import IdSpace, TokenNgrams
from tokalign.build.counting.word_encoder import WordEncoder
from tokalign.build.counting.workers import workers
from tokalign.build.counting.workspace import open_workspace
from tokalign.build.stages import Stage, silent
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

MAX_ORDER = 9
MIN_COUNT = 2
MAX_NGRAMS = 16_000_000

_WORTH_A_PROCESS = 1 << 21  # bytes on disk; a process takes a second to start
_CHUNKS = Chunks()
_ALL = Share()


def count_token_ngrams(
    corpus: Corpus,
    tokenizer: Tokenizer[TargetId],
    *,
    max_order: int = MAX_ORDER,
    min_count: float = MIN_COUNT,
    max_ngrams: int = MAX_NGRAMS,
    memory: int = MEMORY,
    jobs: int | None = None,
    workspace: Path | None = None,
    stage: Stage = silent,
    chunks: Chunks = _CHUNKS,
) -> Iterator[TokenNgrams]:
    """Count the n-grams of order 1 to `max_order` in each line, as `tokenizer.encode` has it.

    Yields one `TokenNgrams` per order, the shortest first; an order may be empty. No n-gram crosses
    the end of a line. Its count is the sum, over the corpus files, of its occurrences times the
    weight of the file; n-grams with a count below `min_count` are left out. The prefix and the
    suffix of a kept n-gram are kept too. The result does not depend on `memory`, `jobs`,
    `workspace` and `chunks`.

    max_ngrams: the most n-grams to keep, of all orders together; `min_count` is raised by 1 until
        they fit. It bounds the memory of the result: 30 bytes per n-gram.
    memory: how many bytes all processes together may hold at once, without the result.
    jobs: the most processes; default: one per core, fewer for a small corpus.
    workspace: a folder for finished files, from which a killed count resumes. It is deleted at the
        end, and takes about 30 bytes per token, 60 from 500 MB of text on. Default: a temporary
        folder.
    stage: shows two steps, in bytes of the corpus on disk.
    Raises: UsageError if `memory` is too little, or another process uses the workspace.
    """
    space = IdSpace(len(tokenizer.vocabulary))
    size = corpus.size
    jobs = jobs or min(os.cpu_count() or 1, 1 + size // _WORTH_A_PROCESS)
    jobs, max_words = plan_processes(memory, jobs=jobs, vocabulary_size=space.size)
    with open_workspace(workspace) as folder:
        counting = Counting(
            corpus=corpus,
            tokenizer=tokenizer,
            max_order=max_order,
            min_count=min_count,
            max_ngrams=max_ngrams,
            folder=folder,
            chunks=chunks,
        )
        with workers(jobs, partial(make_encoder, tokenizer, max_words)) as apply:
            with stage(size, "Encoding the corpus") as advance:
                encode(counting, _ALL, apply, advance)
            corpus.finish(read_stamps(counting, _ALL.of))
            with stage(size, "Counting token n-grams") as advance:
                cut(counting, _ALL, apply)
                count(counting, _ALL, apply, lambda part: advance(int(part * size)))
        prune(counting, _ALL)
        yield from collect(counting, _ALL.of)


def make_encoder(tokenizer: Tokenizer[TargetId], max_words: int) -> WordEncoder:
    """The state of a process that encodes."""
    return WordEncoder(tokenizer, IdSpace(len(tokenizer.vocabulary)), max_words=max_words)
