"""How many processes may count, and what each may remember, within so much memory."""

from __future__ import annotations

from tokalign.build.counting.word_encoder import BYTES_PER_WORD, MAX_WORDS
from tokalign.errors import UsageError

MEMORY = 2 << 30

# Measured, rounded up: an interpreter with numpy; what a tokenizer takes per token, merges
# included; a shard or a range while it is sorted.
_PROCESS = 80 << 20
_PER_TOKEN = 1 << 10
_SORTING = 130 << 20

_FEWEST_WORDS = 1 << 16


def share(memory: int, *, jobs: int, vocabulary_size: int) -> tuple[int, int]:
    """How many processes (at most `jobs`) `memory` bytes allow, and words kept by each of them.

    Example: two jobs with 32,000 tokens and 600 MB -> one process, which keeps all its words.
    Raises: UsageError if there is not enough for one.
    """
    process = _PROCESS + _PER_TOKEN * vocabulary_size
    least = process + _SORTING + _FEWEST_WORDS * BYTES_PER_WORD
    if memory < least:
        raise UsageError(
            f"counting with this tokenizer takes {-(-least // 10**6)} MB, "
            f"more than --memory allows ({memory // 10**6} MB); allow at least that"
        )
    while jobs > 1 and process + jobs * least > memory:  # the first process is there beside them
        jobs -= 1
    others = process * jobs if jobs > 1 else 0
    for_words = (memory - process - others - jobs * _SORTING) // jobs
    return jobs, min(MAX_WORDS, for_words // BYTES_PER_WORD)
