"""Reading tiktoken's rank files: one line of `base64 rank` per token.

The files hold neither the pre-tokenizer nor the special tokens; a `Supplement` says them.
"""

from __future__ import annotations

import base64
import binascii

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import checked_ids, checked_pattern
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, byte_level, every_triple, find_roles


def holds_ranks(data: bytes) -> bool:
    """Whether a file begins with a line of `base64 rank`."""
    fields = data[:1024].partition(b"\n")[0].split()
    try:
        return (
            len(fields) == 2
            and fields[1].isdigit()
            and bool(base64.b64decode(fields[0], validate=True))
        )
    except binascii.Error:
        return False


def read_ranks(data: bytes, supplement: Supplement | None) -> TokenizerSpec:
    """Read ranks; without a pattern in the supplement they are refused (VocabularyError)."""
    if supplement is None or supplement.pattern is None:
        raise VocabularyError(
            "holds tiktoken ranks, which lack the pre-tokenizer and the special tokens; "
            "use an alias that knows them (llama3.2, qwen2.5) or the model's tokenizer.json"
        )
    ranks = _read_lines(data)
    size = 1 + max(max(ranks.values()), max(supplement.specials, default=0))
    tokens = [b""] * size
    for token, index in ranks.items():
        tokens[index] = token
    return TokenizerSpec(
        tokens=tuple(tokens),
        triples=every_triple(sorted(ranks.values()), tokens, ranks),
        fallback=frozenset(),
        specials=dict(supplement.specials),
        roles=find_roles(supplement.specials, eos=supplement.eos),
        by_characters=False,
        normalizer=({"type": "NFC"},) if supplement.nfc else (),
        pre_tokenizer=byte_level(checked_pattern(supplement.pattern)),
        ignore_merges=supplement.ignore_merges,
    )


def _read_lines(data: bytes) -> dict[bytes, int]:
    """token -> rank. Raises: VocabularyError for a broken line, or a token or rank that repeats."""
    lines = [line.split() for line in data.splitlines() if line.strip()]
    if set(map(len, lines)) != {2}:
        number = next((i for i, fields in enumerate(lines, start=1) if len(fields) != 2), 0)
        raise VocabularyError(f"has no `base64 rank` in line {number}; download the file again")
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    if len(ranks) < len(lines) or b"" in ranks:
        raise VocabularyError("has an empty or repeated token; download the file again")
    checked_ids(ranks)
    return ranks
