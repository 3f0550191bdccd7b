"""Reading tiktoken's rank files: one line of `base64 rank` per token.

The files hold neither the pre-tokenizer nor the special tokens; a `Supplement` says them.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from tokalign.errors import VocabularyError
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, every_triple, find_roles


def holds_ranks(file: Path) -> bool:
    """Whether the file begins with a line of `base64 rank`."""
    with file.open("rb") as lines:
        fields = lines.readline(1024).split()
    try:
        return (
            len(fields) == 2
            and fields[1].isdigit()
            and bool(base64.b64decode(fields[0], validate=True))
        )
    except binascii.Error:
        return False


def read_ranks(file: Path, supplement: Supplement | None) -> TokenizerSpec:
    """Read ranks; without a pattern in the supplement they are refused (VocabularyError)."""
    if supplement is None or supplement.pattern is None:
        raise VocabularyError(
            "holds tiktoken ranks, which lack the pre-tokenizer and the special tokens; "
            "use an alias that knows them (llama3.2, qwen2.5) or the model's tokenizer.json"
        )
    lines = [line.split() for line in file.read_bytes().splitlines() if line.strip()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
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
        pattern=supplement.pattern,
        ignore_merges=supplement.ignore_merges,
    )
