"""Reading tokenizer.model, the file of SentencePiece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.spec import (
    Supplement,
    TokenizerSpec,
    configured_spelling,
    every_triple,
    find_roles,
)
from tokalign.tokenizer.spelling import read_pieces

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_BPE = 2
"""Enumerations of sentencepiece_model.proto."""


def read_sentencepiece(
    file: Path, supplement: Supplement | None, config: Mapping[str, Any]
) -> TokenizerSpec:
    """config: the tokenizer_config.json beside the file, or nothing."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(file.read_bytes())
    if model.trainer_spec.model_type != _BPE:
        raise VocabularyError(
            "is a SentencePiece model but not BPE; tokalign aligns BPE tokenizers"
        )
    supplement = supplement or Supplement()
    pieces = model.pieces
    special_types = (_CONTROL, _USER_DEFINED, _UNKNOWN)
    specials = {i: p.piece for i, p in enumerate(pieces) if p.type in special_types}
    specials |= supplement.specials
    size = 1 + max(len(pieces) - 1, max(specials))
    tokens, fallback = read_pieces(
        ["" if i in specials or i >= len(pieces) else pieces[i].piece for i in range(size)]
    )
    literal = {t: i for i, t in enumerate(tokens) if t and i not in fallback}
    order = sorted(literal.values(), key=lambda i: (-pieces[i].score, i))
    if supplement.ranked_by_id:
        order.sort()
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(order, tokens, literal),
        fallback=fallback,
        specials=specials,
        roles=find_roles(
            specials,
            bos=configured_spelling(config, "bos_token"),
            eos=supplement.eos or configured_spelling(config, "eos_token"),
        ),
        by_characters=True,
        dummy_prefix=model.normalizer_spec.add_dummy_prefix,
        adds_bos=bool(config.get("add_bos_token", False)),
    )
