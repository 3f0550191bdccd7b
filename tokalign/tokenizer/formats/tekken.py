"""Reading tekken.json, the vocabulary file of Mistral's models since NeMo.

Like tiktoken's files it ranks tokens, and more of them than the model has; unlike them it holds the
pre-tokenizer. The ids of the special tokens come first. Older files do not list their spellings,
but the first three are known.
Source: mistral_common/tokens/tokenizers/tekken.py (Apache-2.0).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tokalign.tokenizer.spec import TokenizerSpec, every_triple, find_roles

_KNOWN = ("<unk>", "<s>", "</s>")


def is_tekken(document: Mapping[str, Any]) -> bool:
    """Whether a JSON document is a tekken file."""
    return "config" in document and isinstance(document.get("vocab"), list)


def read_tekken(document: Mapping[str, Any]) -> TokenizerSpec:
    """Read a tekken document; its tokens get the ids after those of the special tokens."""
    config = document["config"]
    special_count = int(config["default_num_special_tokens"])
    specials = {i: f"<SPECIAL_{i}>" for i in range(special_count)}
    specials |= dict(enumerate(_KNOWN[:special_count]))
    for listed in document.get("special_tokens") or ():
        specials[int(listed["rank"])] = listed["token_str"]
    count = int(config["default_vocab_size"]) - special_count
    ranked = sorted(document["vocab"], key=lambda entry: int(entry["rank"]))[:count]
    words = [base64.b64decode(entry["token_bytes"]) for entry in ranked]
    tokens = (*(b"" for _ in range(special_count)), *words)
    literal = {token: index for index, token in enumerate(tokens) if token}
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(range(special_count, len(tokens)), tokens, literal),
        fallback=frozenset(),
        specials=specials,
        roles=find_roles(specials),
        by_characters=False,
        pattern=config["pattern"],
        ignore_merges=True,
        adds_bos=True,
    )
