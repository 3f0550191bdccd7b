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

from msgspec import convert

from tokalign.errors import VocabularyError
from tokalign.tokenizer.limits import AGAIN, Pattern, TokenId, check_ids, shortened
from tokalign.tokenizer.roles import find_roles
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, byte_level, every_triple

_FIRST = ("<unk>", "<s>", "</s>")
"""The first special tokens of every tekken file."""


def holds_ranks(data: bytes) -> bool:
    """Whether a file begins with a line of `base64 rank`."""
    fields = data[:1024].partition(b"\n")[0].split()
    try:
        token = base64.b64decode(fields[0], validate=True) if len(fields) == 2 else b""
    except binascii.Error:
        return False
    return bool(token) and fields[1].isdigit()


def read_ranks(data: bytes, supplement: Supplement | None) -> TokenizerSpec:
    """Read ranks; without a pattern in the supplement they are refused (VocabularyError)."""
    if supplement is None or supplement.pattern is None:
        raise VocabularyError(
            "holds tiktoken ranks, which lack the pre-tokenizer and the special tokens; "
            "use an alias that knows them (llama3.2, qwen2.5) or the model's tokenizer.json"
        )
    lines = [line.split() for line in data.splitlines() if line.strip()]
    for number, fields in enumerate(lines, start=1):
        if len(fields) != 2:
            raise VocabularyError(f"has no `base64 rank` in line {number}; {AGAIN}")
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    if len(ranks) < len(lines) or b"" in ranks:
        raise VocabularyError(f"has an empty or repeated token; {AGAIN}")
    check_ids(ranks)
    return _specification(
        ranks,
        supplement.specials,
        supplement.pattern,
        roles=find_roles(supplement.specials, {"eos_token": supplement.eos}),
        normalizer=({"type": "NFC"},) if supplement.nfc else (),
        ignore_merges=supplement.ignore_merges,
    )


def is_tekken(document: Any) -> bool:
    """Whether a JSON document is a tekken file."""
    return (
        isinstance(document, dict)
        and "config" in document
        and isinstance(document.get("vocab"), list)
    )


def read_tekken(document: Mapping[str, Any]) -> TokenizerSpec:
    """Read a tekken document. Raises: VocabularyError for ids and ranks that make no sense."""
    config = document["config"]
    first = convert(config["default_num_special_tokens"], TokenId)
    size = convert(config["default_vocab_size"], TokenId)
    specials = {i: f"<SPECIAL_{i}>" for i in range(first)} | dict(enumerate(_FIRST[:first]))
    for listed in document.get("special_tokens") or ():
        if (rank := convert(listed["rank"], TokenId)) >= first:
            raise VocabularyError(
                f"has a special token of rank {rank}, where a rank below {first} was expected; "
                f"{AGAIN}"
            )
        specials[rank] = str(listed["token_str"])
    ids: dict[bytes, int] = {}
    for place, entry in enumerate(document["vocab"]):
        if (rank := entry["rank"]) != place:  # as Mistral's own reader demands
            raise VocabularyError(
                f"has rank {shortened(rank)} in place {place} of its vocabulary, where each rank "
                f"was expected once and in order; {AGAIN}"
            )
        token = base64.b64decode(entry["token_bytes"], validate=True)
        if not token:
            raise VocabularyError(f"has an empty token (rank {rank}); {AGAIN}")
        if first + place < size:
            ids[token] = first + place
    roles = find_roles(specials, {})
    return _specification(
        ids,
        specials,
        config["pattern"],
        roles=roles,
        ignore_merges=True,
        opening=() if roles.bos is None else (roles.bos,),
    )


def _specification(
    ids: Mapping[bytes, int], specials: Mapping[int, str], pattern: Any, **fields: Any
) -> TokenizerSpec:
    tokens = [b""] * (1 + max([*ids.values(), *specials]))
    for token, index in ids.items():
        tokens[index] = token
    return TokenizerSpec(
        tokens=tuple(tokens),
        triples=every_triple(sorted(ids.values()), tokens, ids),
        specials=dict(specials),
        by_characters=False,
        pre_tokenizer=byte_level(convert(pattern, Pattern)),
        **fields,
    )
