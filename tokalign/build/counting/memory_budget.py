"""What fits in a given memory: processes that count, and words that each remembers."""

from __future__ import annotations

from tokalign.build.counting.word_encoder import BYTES_PER_WORD, MAX_WORDS
from tokalign.errors import UsageError

MEMORY = 2 << 30
"""Bytes that all processes of a count may hold together, by default."""

# Measured, and rounded up.
_PROCESS = 80 << 20  # an interpreter with numpy
_PER_TOKEN = 1 << 10  # a tokenizer with its merges, per token
_SORTING = 130 << 20  # a shard or a range while it is sorted

_FEWEST_WORDS = 1 << 16


def plan_processes(memory: int, *, jobs: int, vocabulary_size: int) -> tuple[int, int]:
    """How many processes (at most `jobs`) fit in `memory` bytes, and how many words each may keep.

    Example: two jobs with 32,000 tokens and 600 MB -> one process, which keeps all its words.
    Raises: UsageError if one process does not fit.
    """
    process = _PROCESS + _PER_TOKEN * vocabulary_size
    least = process + _SORTING + _FEWEST_WORDS * BYTES_PER_WORD
    if memory < least:
        raise UsageError(
            f"counting with this tokenizer takes {-(-least // 10**6)} MB, "
            f"more than --memory allows ({memory // 10**6} MB); allow at least that"
        )
    # With several jobs, the process that starts them needs memory too.
    while jobs > 1 and process + jobs * least > memory:
        jobs -= 1
    others = process * jobs if jobs > 1 else 0
    for_words = (memory - process - others - jobs * _SORTING) // jobs
    return jobs, min(MAX_WORDS, for_words // BYTES_PER_WORD)
