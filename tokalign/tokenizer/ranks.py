"""Reading vocabularies that are ranked lists of tokens: tiktoken's rank files and tekken.json.

A rank file has one line of `base64 rank` per token. It holds neither the pre-tokenizer nor the
special tokens; a `Supplement` says them.

tekken.json is the file of Mistral's models since NeMo. It ranks more tokens than the model has, and
holds the pre-tokenizer. The ids of the special tokens come first. Older files do not list their
spellings, but the first three are known.
Source: mistral_common/tokens/tokenizers/tekken.py (Apache-2.0).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.limits import checked_id, checked_ids, checked_pattern, shortened
from tokalign.tokenizer.roles import find_roles
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, byte_level, every_triple


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
        specials=dict(supplement.specials),
        roles=find_roles(supplement.specials, {"eos_token": supplement.eos}),
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


_KNOWN = ("<unk>", "<s>", "</s>")


def is_tekken(document: Any) -> bool:
    """Whether a JSON document is a tekken file."""
    return (
        isinstance(document, dict)
        and "config" in document
        and isinstance(document.get("vocab"), list)
    )


def read_tekken(document: Mapping[str, Any]) -> TokenizerSpec:
    """Read a tekken document; its tokens get the ids after those of the special tokens.

    Raises: VocabularyError for ids and ranks that make no sense; KeyError, TypeError or ValueError
    for a file that is broken.
    """
    config = document["config"]
    special_count = checked_id(config["default_num_special_tokens"], "the first token")
    last = checked_id(config["default_vocab_size"] - 1, "the last token")
    specials = {i: f"<SPECIAL_{i}>" for i in range(special_count)}
    specials |= dict(enumerate(_KNOWN[:special_count]))
    for listed in document.get("special_tokens") or ():
        spelling = str(listed["token_str"])
        rank = checked_id(listed["rank"], f"the special token {shortened(spelling, 30)}")
        if rank >= special_count:
            raise VocabularyError(
                f"has a special token of rank {rank}, where a rank below {special_count} was "
                "expected; download the file again"
            )
        specials[rank] = spelling
    words = _words(document["vocab"])[: last + 1 - special_count]
    tokens = (*(b"" for _ in range(special_count)), *words)
    literal = {token: index for index, token in enumerate(tokens) if token}
    roles = find_roles(specials, {})
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(range(special_count, len(tokens)), tokens, literal),
        specials=specials,
        roles=roles,
        by_characters=False,
        pre_tokenizer=byte_level(checked_pattern(config["pattern"])),
        ignore_merges=True,
        opening=() if (bos := roles.bos) is None else (bos,),
    )


def _words(vocab: list[Mapping[str, Any]]) -> list[bytes]:
    """The tokens as bytes. The rank of each must be its place, as Mistral's own reader demands."""
    words = []
    for place, entry in enumerate(vocab):
        if (rank := entry["rank"]) != place:
            raise VocabularyError(
                f"has rank {shortened(rank)} in place {place} of its vocabulary, where each rank "
                "was expected once and in order; download the file again"
            )
        word = base64.b64decode(entry["token_bytes"], validate=True)
        if not word:
            raise VocabularyError(f"has an empty token (rank {rank}); download the file again")
        words.append(word)
    return words
