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

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import checked_id, checked_pattern, shortened
from tokalign.tokenizer.spec import TokenizerSpec, byte_level, every_triple, find_roles

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
        specials[_special_rank(listed, special_count)] = str(listed["token_str"])
    words = _words(document["vocab"])[: last + 1 - special_count]
    tokens = (*(b"" for _ in range(special_count)), *words)
    literal = {token: index for index, token in enumerate(tokens) if token}
    roles = find_roles(specials)
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(range(special_count, len(tokens)), tokens, literal),
        fallback=frozenset(),
        specials=specials,
        roles=roles,
        by_characters=False,
        pre_tokenizer=byte_level(checked_pattern(config["pattern"])),
        ignore_merges=True,
        opening=() if (bos := roles.bos) is None else (bos,),
    )


def _special_rank(listed: Mapping[str, Any], count: int) -> int:
    rank = checked_id(listed["rank"], f"the special token {shortened(listed['token_str'], 30)}")
    if rank < count:
        return rank
    raise VocabularyError(
        f"has a special token of rank {rank}, where a rank below {count} was expected; "
        "download the file again"
    )


def _words(vocab: list[Mapping[str, Any]]) -> list[bytes]:
    """The tokens as bytes. The rank of each must be its place, as Mistral's own reader demands."""
    words = []
    for place, entry in enumerate(vocab):
        rank = checked_id(entry["rank"], f"entry {place}")
        if rank != place:
            raise VocabularyError(
                f"has rank {rank} in place {place} of its vocabulary, where each rank was expected "
                "once and in order; download the file again"
            )
        word = base64.b64decode(entry["token_bytes"], validate=True)
        if not word:
            raise VocabularyError(f"has an empty token (rank {rank}); download the file again")
        words.append(word)
    return words
