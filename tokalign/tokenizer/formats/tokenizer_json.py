"""Reading tokenizer.json, the file of Hugging Face's `tokenizers` library.

What comes before and after BPE is in `pipeline.py`; here are the model, its merges and the added
tokens. Whatever changes ids is modelled, or refused by name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.formats.limits import checked_id, checked_ids, flag, shortened
from tokalign.tokenizer.formats.pipeline import Pipeline, read_pipeline, template_adds
from tokalign.tokenizer.spec import TokenizerSpec, configured_spelling, find_roles
from tokalign.tokenizer.spelling import read_byte_level, read_pieces

_AGAIN = "download the file again"


def read_tokenizer_json(document: Any, config: Mapping[str, Any]) -> TokenizerSpec:
    """document: the file; config: the tokenizer_config.json beside it, or nothing.

    Raises: VocabularyError for what tokalign does not model; KeyError, TypeError or ValueError
    for a file that is broken.
    """
    model = _model(document)
    by_characters = flag(model, "byte_fallback", default=False)
    pipeline = read_pipeline(document, by_characters=by_characters)
    vocab = _vocab(model)
    added = _added_tokens(document, vocab, pipeline)
    size = 1 + max(max(vocab.values()), max(added, default=0))
    spellings: list[str] = [""] * size
    for spelling, index in vocab.items():
        spellings[index] = "" if index in added else spelling
    tokens, fallback = (
        read_pieces(spellings) if by_characters else (_read_byte_level(spellings), frozenset[int]())
    )
    if pipeline.cuts_at_spaces and any(b" " in token[1:] for token in tokens):
        raise VocabularyError(
            "pre-tokenizes with Metaspace(split=True) but has tokens with a space inside, a "
            "combination that tokalign does not model; choose another model"
        )
    roles = find_roles(
        added,
        bos=configured_spelling(config, "bos_token"),
        eos=configured_spelling(config, "eos_token"),
    )
    return TokenizerSpec(
        tokens=tokens,
        triples=_listed_triples(model.get("merges"), vocab),
        fallback=fallback,
        specials=added,
        roles=roles,
        by_characters=by_characters,
        pattern=pipeline.pattern,
        dummy_prefix=pipeline.dummy_prefix,
        ignore_merges=flag(model, "ignore_merges", default=False),
        adds_bos=_adds_bos(document, config, roles.bos),
        nfc=pipeline.nfc,
        prefix_once=pipeline.prefix_once,
        prefix_unless_space=pipeline.prefix_unless_space,
    )


def _model(document: Any) -> Mapping[str, Any]:
    """The BPE model, if it and what surrounds it has nothing that tokalign does not model."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise VocabularyError(f"has no tokenizer model where one was expected; {_AGAIN}")
    if model.get("type", "BPE") != "BPE":
        raise VocabularyError(
            f"holds a {shortened(model['type'])} model; tokalign aligns BPE tokenizers "
            "(SentencePiece BPE, byte-level BPE, tiktoken)"
        )
    if model.get("dropout"):
        raise VocabularyError(
            f"drops merges at random (dropout {shortened(model['dropout'])}), so that a text has "
            "no one encoding; set dropout to null in the file"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise VocabularyError(
                f"marks the pieces of words ({key} {shortened(model[key])}), which tokalign does "
                "not model; choose a model with a byte-level or SentencePiece tokenizer"
            )
    for key in ("truncation", "padding"):
        if document.get(key) is not None:
            raise VocabularyError(
                f"has {key} switched on, which would cut or fill up every text; set {key} to null "
                "in the file"
            )
    return model


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise VocabularyError(f"has no vocabulary of tokens and ids; {_AGAIN}")
    checked_ids(vocab)
    return vocab


def _added_tokens(
    document: Mapping[str, Any], vocab: Mapping[str, int], pipeline: Pipeline
) -> dict[int, str]:
    """The added tokens, id -> spelling; refused where the library finds them otherwise than we."""
    listed = document.get("added_tokens") or ()
    added: dict[int, str] = {}
    spelled: set[str] = set()
    for entry in listed:
        spelling = entry["content"]
        if not isinstance(spelling, str) or not spelling:
            raise VocabularyError(f"has an added token without a spelling; {_AGAIN}")
        index = checked_id(entry["id"], f"the added token {shortened(spelling, 30)}")
        if index in added or spelling in spelled:
            raise VocabularyError(f"adds the token {shortened(spelling)} or its id twice; {_AGAIN}")
        _check_finding(entry, spelling, pipeline)
        added[index] = spelling
        spelled.add(spelling)
    of_vocab = {index: spelling for spelling, index in vocab.items() if index in added}
    for index, spelling in added.items():
        if vocab.get(spelling, index) != index or of_vocab.get(index, spelling) != spelling:
            raise VocabularyError(
                f"gives the added token {shortened(spelling)} the id {index}, but its vocabulary "
                f"says otherwise; {_AGAIN}"
            )
    return added


def _check_finding(entry: Mapping[str, Any], spelling: str, pipeline: Pipeline) -> None:
    """Refuse (VocabularyError) an added token that is not found exactly where it is spelled."""
    for option in ("lstrip", "rstrip", "single_word"):
        if flag(entry, option, default=False):
            raise VocabularyError(
                f"finds the added token {shortened(spelling)} with {option}, which tokalign does "
                f"not model; set {option} to false in the file"
            )
    if flag(entry, "normalized", default=False) and (
        pipeline.dummy_prefix or not unicodedata.is_normalized("NFC", spelling) or " " in spelling
    ):
        raise VocabularyError(
            f"normalizes the added token {shortened(spelling)} to another spelling, which tokalign "
            "does not model; set normalized to false in the file"
        )
    if not flag(entry, "special", default=False) and not looks_like_markup(spelling):
        raise VocabularyError(
            f"adds {shortened(spelling)} as a token that is found in ordinary text before BPE, "
            "which tokalign does not model; choose a model without such added tokens"
        )


def looks_like_markup(spelling: str) -> bool:
    """Whether a token is spelled so that no ordinary text holds it (`<tool_call>`, `[INST]`)."""
    return len(spelling) > 2 and spelling[0] + spelling[-1] in ("<>", "[]")


def _read_byte_level(spellings: Sequence[str]) -> tuple[bytes, ...]:
    try:
        return read_byte_level(spellings)
    except KeyError as error:
        raise VocabularyError(
            f"spells tokens with {shortened(error.args[0])}, which is not in the alphabet of "
            "byte-level BPE, and has no byte fallback, so that some bytes cannot be spelled; "
            "choose a model whose tokenizer spells every byte"
        ) from error


def _listed_triples(merges: Any, vocab: Mapping[str, int]) -> list[tuple[int, int, int]]:
    if not isinstance(merges, list):
        raise VocabularyError(f"has no list of merges; {_AGAIN}")
    triples = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            triples.append((vocab[left], vocab[right], vocab[left + right]))
        except KeyError as error:
            raise VocabularyError(
                f"merges {shortened(left, 30)} and {shortened(right, 30)}, but has no token "
                f"{shortened(error.args[0])}; {_AGAIN}"
            ) from error
    return triples


def _adds_bos(document: Mapping[str, Any], config: Mapping[str, Any], bos: int | None) -> bool:
    """Whether the tokenizer begins every encoding with BOS. The configuration has the last word."""
    adds = template_adds(document)
    if adds and adds != [bos]:
        raise VocabularyError(
            f"puts the ids {shortened(adds)} before every text, where at most a BOS (id {bos}) "
            "was expected; remove its post_processor or choose another model"
        )
    return flag(config, "add_bos_token", default=bool(adds))
