"""Reading tokenizer.model, the file of SentencePiece: BPE models with byte fallback that leave text
as it is, but for the spaces that become `▁` and the dummy prefix. Others are refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.limits import AGAIN, MAX_IDS, shortened
from tokalign.tokenizer.roles import find_roles, is_control
from tokalign.tokenizer.spec import Supplement, TokenizerSpec, every_triple
from tokalign.tokenizer.spelling import read_pieces

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_BPE = 2
"""Enumerations of sentencepiece_model.proto."""

_OTHER = "choose another model, or its tokenizer.json"


def read_sentencepiece(
    data: bytes, supplement: Supplement | None, config: Mapping[str, Any]
) -> TokenizerSpec:
    """Raises: VocabularyError for what is not modelled; protobuf's DecodeError if broken."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    supplement = supplement or Supplement()
    pieces = model.pieces
    spellings, kinds = [piece.piece for piece in pieces], [piece.type for piece in pieces]
    _check_model(model)
    special_types = (_CONTROL, _USER_DEFINED, _UNKNOWN)
    specials = {i: spellings[i] for i, kind in enumerate(kinds) if kind in special_types}
    specials |= supplement.specials
    size = 1 + max(len(pieces) - 1, max(specials, default=0))
    tokens, fallback = read_pieces(
        ["" if i in specials or i >= len(pieces) else spellings[i] for i in range(size)]
    )
    _check_pieces(spellings, kinds, fallback)
    literal = {t: i for i, t in enumerate(tokens) if t and i not in fallback}
    order = sorted(literal.values(), key=lambda i: (-pieces[i].score, i))
    if supplement.ranked_by_id:
        order.sort()
    else:
        _check_scores([pieces[i].score for i in order if len(spellings[i]) > 1])
    eos = supplement.eos or config.get("eos_token")
    roles = find_roles(specials, {**config, "eos_token": eos})
    opening = () if roles.bos is None or not config.get("add_bos_token") else (roles.bos,)
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(order, tokens, literal),
        fallback=fallback,
        specials=specials,
        roles=roles,
        by_characters=True,
        dummy_prefix=bool(model.normalizer_spec.add_dummy_prefix),
        unknown=None if fallback else next((i for i, k in enumerate(kinds) if k == _UNKNOWN), None),
        fuses_unknown=True,
        opening=opening,
    )


def _check_model(model: Any) -> None:
    """Refuse (VocabularyError) a model that is not BPE or changes text before it is encoded."""
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    rule = shortened(normalizer.name or "of its own")
    changes_text = normalizer.precompiled_charsmap or normalizer.normalization_rule_tsv
    for wrong, what in (
        (not model.pieces, f"holds no SentencePiece model; {AGAIN}"),
        (len(model.pieces) > MAX_IDS, f"has more than {MAX_IDS:,} pieces; {_OTHER}"),
        (trainer.model_type != _BPE, f"is a SentencePiece model but not BPE; {_OTHER}"),
        (changes_text, f"normalizes text by the rule {rule}; {_OTHER}"),
        (normalizer.remove_extra_whitespaces, f"removes extra spaces; {_OTHER}"),
        (not normalizer.escape_whitespaces, f"leaves spaces as they are; {_OTHER}"),
        (trainer.treat_whitespace_as_suffix, f"puts spaces at the end of words; {_OTHER}"),
    ):
        if wrong:
            raise VocabularyError(what)


def _check_pieces(spellings: list[str], kinds: list[int], fallback: frozenset[int]) -> None:
    """Refuse (VocabularyError) pieces that SentencePiece treats otherwise than tokalign."""
    for index, (spelling, kind) in enumerate(zip(spellings, kinds, strict=True)):
        if not spelling or " " in spelling:
            what = "has a piece that is empty or holds a space"
        elif (kind == _BYTE) != (index in fallback):
            what = "has a piece that is spelled as a byte but is none, or the reverse"
        elif kind == _UNUSED:
            what = "has an unused piece, which tokalign does not model"
        elif kind == _USER_DEFINED and not is_control(spelling, special=False, in_vocabulary=False):
            what = "finds a user-defined symbol in ordinary text before BPE"
        else:
            continue
        raise VocabularyError(f"{what} ({shortened(spelling, 30)}, id {index}); {_OTHER}")


def _check_scores(scores: Sequence[float]) -> None:
    """Refuse (VocabularyError) scores that leave open which merge goes first."""
    if not all(map(math.isfinite, scores)) or len(set(scores)) < len(scores):
        raise VocabularyError(
            "has scores that are equal or no numbers, so that the order of its merges is unclear; "
            f"{_OTHER}"
        )
