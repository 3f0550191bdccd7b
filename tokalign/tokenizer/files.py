"""Reading tokenizer files: tokenizer.json, SentencePiece's tokenizer.model, ranks, tekken.json.

Four spellings of one thing. Each reader inverts its file's spelling and returns a `TokenizerSpec`:
bytes, merges, pre-tokenizer, special tokens. Nothing behind this module knows which file it was.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokalign.errors import MissingAssetError, VocabularyError
from tokalign.tokenizer.spec import (
    Supplement,
    TokenizerSpec,
    byte_alphabet,
    every_triple,
    find_roles,
)
from tokalign.tokenizer.tekken import is_tekken, read_tekken

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=True)` means (tokenizers, `pre_tokenizers/byte_level.rs`)."""

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SENTENCEPIECE_BPE = 2
"""Enumerations of sentencepiece_model.proto."""


def read_tokenizer_file(path: Path, supplement: Supplement | None = None) -> TokenizerSpec:
    """Read a tokenizer file, or the best one in a model's folder.

    Raises: MissingAssetError when there is none; VocabularyError when it is broken or not BPE.
    """
    if path.is_dir():
        path = _choose_file(path)
    if not path.is_file():
        raise MissingAssetError(f"{path} does not exist; give a tokenizer file or a model's folder")
    try:
        if path.suffix == ".json":
            return _read_json(path)
        if _holds_ranks(path):
            return _read_ranks(path, supplement)
        return _read_sentencepiece(path, supplement)
    except VocabularyError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, OSError) as error:
        raise VocabularyError(
            f"{path} is not a tokenizer file tokalign can read ({error}); download it again"
        ) from error


def _choose_file(folder: Path) -> Path:
    names = [
        "tokenizer.json",
        "tekken.json",
        "tokenizer.model",
        *sorted(p.name for p in folder.glob("*.tiktoken")),
    ]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise MissingAssetError(
        f"{folder} holds no tokenizer.json, tekken.json, tokenizer.model or *.tiktoken; "
        "point to a model's folder or a tokenizer file"
    )


# -- tokenizer.json ----------------------------------------------------------------------------


def _read_json(path: Path) -> TokenizerSpec:
    document = json.loads(path.read_bytes())
    if is_tekken(document):
        return read_tekken(document)
    model = document["model"]
    if model.get("type", "BPE") != "BPE":
        raise VocabularyError(
            f"{path} holds a {model.get('type')} model; tokalign aligns BPE tokenizers "
            "(SentencePiece BPE, byte-level BPE, tiktoken)"
        )
    config = _sibling(path, "tokenizer_config.json")
    added = {entry["id"]: entry["content"] for entry in document.get("added_tokens") or ()}
    by_characters = bool(model.get("byte_fallback"))
    vocab: dict[str, int] = model["vocab"]
    size = 1 + max(max(vocab.values()), max(added, default=0))
    spellings: list[str] = [""] * size
    for spelling, index in vocab.items():
        spellings[index] = spelling
    for index in added:
        spellings[index] = ""
    tokens, fallback = (_from_pieces if by_characters else _from_alphabet)(spellings)
    pattern, prefix_space = _pre_tokenizer(document.get("pre_tokenizer"), path)
    return TokenizerSpec(
        tokens=tokens,
        triples=_listed_triples(model["merges"], vocab),
        fallback=fallback,
        specials=added,
        roles=find_roles(added, config),
        by_characters=by_characters,
        pattern=pattern,
        dummy_prefix=prefix_space or _prepends(document.get("normalizer")),
        ignore_merges=bool(model.get("ignore_merges")),
        adds_bos=bool(config.get("add_bos_token", _template_adds_bos(document, config))),
    )


def _sibling(path: Path, name: str) -> dict[str, Any]:
    beside = path.with_name(name)
    return json.loads(beside.read_bytes()) if beside.is_file() else {}


def _listed_triples(
    merges: Iterable[str | Sequence[str]], vocab: Mapping[str, int]
) -> list[tuple[int, int, int]]:
    triples = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        triples.append((vocab[left], vocab[right], vocab[left + right]))
    return triples


def _parts(node: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as a flat list of its steps."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [part for child in node[key] for part in _parts(child, key)]
    return [node]


def _pre_tokenizer(node: dict[str, Any] | None, path: Path) -> tuple[str | None, bool]:
    """(pattern, whether a space is put before the text)."""
    pattern, prefix_space = None, False
    for part in _parts(node, "pretokenizers"):
        match part["type"]:
            case "Split" if "Regex" in part["pattern"] and pattern is None:
                pattern = part["pattern"]["Regex"]
            case "Split" if part["pattern"].get("String") == " ":
                pass  # Gemma: the normalizer has left no space to split at
            case "ByteLevel":
                prefix_space = prefix_space or bool(part.get("add_prefix_space"))
                if part.get("use_regex", True):
                    pattern = GPT2_PATTERN
            case "Metaspace":
                prefix_space = part.get("prepend_scheme", "always") != "never"
            case kind:
                raise VocabularyError(
                    f"{path} pre-tokenizes with {kind}, which tokalign does not model; "
                    "supported are one Split by regex, ByteLevel and Metaspace"
                )
    return pattern, prefix_space


def _prepends(normalizer: dict[str, Any] | None) -> bool:
    return any(part["type"] == "Prepend" for part in _parts(normalizer, "normalizers"))


def _template_adds_bos(document: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether the post-processor's template begins with a special token."""
    for part in _parts(document.get("post_processor"), "processors"):
        if part["type"] == "TemplateProcessing" and part["single"]:
            return "SpecialToken" in part["single"][0]
    return False


# -- tokenizer.model (SentencePiece) -----------------------------------------------------------


def _read_sentencepiece(path: Path, supplement: Supplement | None) -> TokenizerSpec:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    if model.trainer_spec.model_type != _SENTENCEPIECE_BPE:
        raise VocabularyError(f"{path} is a SentencePiece model but not BPE; tokalign aligns BPE")
    supplement = supplement or Supplement()
    pieces = model.pieces
    special_types = (_CONTROL, _USER_DEFINED, _UNKNOWN)
    specials = {i: p.piece for i, p in enumerate(pieces) if p.type in special_types}
    specials |= supplement.specials
    size = 1 + max(len(pieces) - 1, max(specials))
    tokens, fallback = _from_pieces(
        ["" if i in specials or i >= len(pieces) else pieces[i].piece for i in range(size)]
    )
    literal = {t: i for i, t in enumerate(tokens) if t and i not in fallback}
    order = sorted(literal.values(), key=lambda i: (-pieces[i].score, i))
    if supplement.ranked_by_id:
        order.sort()
    config = _sibling(path, "tokenizer_config.json")
    if supplement.eos is not None:
        config = config | {"eos_token": supplement.eos}
    return TokenizerSpec(
        tokens=tokens,
        triples=every_triple(order, tokens, literal),
        fallback=fallback,
        specials=specials,
        roles=find_roles(specials, config),
        by_characters=True,
        dummy_prefix=model.normalizer_spec.add_dummy_prefix,
        adds_bos=bool(config.get("add_bos_token", False)),
    )


# -- tiktoken ranks ----------------------------------------------------------------------------


def _holds_ranks(path: Path) -> bool:
    """Whether the file is lines of `base64 rank`."""
    with path.open("rb") as file:
        fields = file.readline(1024).split()
    try:
        return (
            len(fields) == 2
            and fields[1].isdigit()
            and bool(base64.b64decode(fields[0], validate=True))
        )
    except binascii.Error:
        return False


def _read_ranks(path: Path, supplement: Supplement | None) -> TokenizerSpec:
    if supplement is None or supplement.pattern is None:
        raise VocabularyError(
            f"{path} holds tiktoken ranks, which lack the pre-tokenizer and the special tokens; "
            "use an alias that knows them (llama3.2, qwen2.5) or the model's tokenizer.json"
        )
    lines = [line.split() for line in path.read_bytes().splitlines() if line.strip()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    size = 1 + max(max(ranks.values()), max(supplement.specials, default=0))
    tokens = [b""] * size
    for spelled, index in ranks.items():
        tokens[index] = spelled
    order = sorted(ranks.values())
    return TokenizerSpec(
        tokens=tuple(tokens),
        triples=every_triple(order, tokens, ranks),
        fallback=frozenset(),
        specials=dict(supplement.specials),
        roles=find_roles(supplement.specials, {"eos_token": supplement.eos}),
        by_characters=False,
        pattern=supplement.pattern,
        ignore_merges=supplement.ignore_merges,
    )


# -- what the readers share --------------------------------------------------------------------


def _from_pieces(spellings: Sequence[str]) -> tuple[tuple[bytes, ...], frozenset[int]]:
    """SentencePiece spellings as bytes: `▁` is a space, `<0xNN>` is that byte."""
    tokens, fallback = [], set()
    for index, piece in enumerate(spellings):
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            tokens.append(bytes([int(piece[3:5], 16)]))
            fallback.add(index)
        else:
            tokens.append(piece.replace("▁", " ").encode())
    return tuple(tokens), frozenset(fallback)


def _from_alphabet(spellings: Sequence[str]) -> tuple[tuple[bytes, ...], frozenset[int]]:
    """Byte-level spellings as bytes: every character is one byte of GPT-2's alphabet."""
    alphabet = {character: byte for byte, character in enumerate(byte_alphabet())}
    return tuple(bytes([alphabet[c] for c in spelling]) for spelling in spellings), frozenset()
