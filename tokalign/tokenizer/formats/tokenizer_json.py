"""Reading tokenizer.json, the file of Hugging Face's `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokalign.errors import VocabularyError
from tokalign.tokenizer.spec import TokenizerSpec, configured_spelling, find_roles
from tokalign.tokenizer.spelling import read_byte_level, read_pieces

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel(use_regex=True)` means (tokenizers, `pre_tokenizers/byte_level.rs`)."""


def read_tokenizer_json(document: Mapping[str, Any], config: Mapping[str, Any]) -> TokenizerSpec:
    """document: the file; config: the tokenizer_config.json beside it, or nothing."""
    model = document["model"]
    if model.get("type", "BPE") != "BPE":
        raise VocabularyError(
            f"holds a {model.get('type')} model; tokalign aligns BPE tokenizers "
            "(SentencePiece BPE, byte-level BPE, tiktoken)"
        )
    added = {entry["id"]: entry["content"] for entry in document.get("added_tokens") or ()}
    by_characters = bool(model.get("byte_fallback"))
    vocab: dict[str, int] = model["vocab"]
    size = 1 + max(max(vocab.values()), max(added, default=0))
    spellings: list[str] = [""] * size
    for spelling, index in vocab.items():
        spellings[index] = "" if index in added else spelling
    tokens, fallback = (
        read_pieces(spellings) if by_characters else (read_byte_level(spellings), frozenset[int]())
    )
    pattern, prefix_space = _pre_tokenizer(document.get("pre_tokenizer"))
    return TokenizerSpec(
        tokens=tokens,
        triples=_listed_triples(model["merges"], vocab),
        fallback=fallback,
        specials=added,
        roles=find_roles(
            added,
            bos=configured_spelling(config, "bos_token"),
            eos=configured_spelling(config, "eos_token"),
        ),
        by_characters=by_characters,
        pattern=pattern,
        dummy_prefix=prefix_space or _prepends(document.get("normalizer")),
        ignore_merges=bool(model.get("ignore_merges")),
        adds_bos=bool(config.get("add_bos_token", _template_adds_bos(document))),
    )


def _listed_triples(
    merges: Iterable[str | Sequence[str]], vocab: Mapping[str, int]
) -> list[tuple[int, int, int]]:
    triples = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        triples.append((vocab[left], vocab[right], vocab[left + right]))
    return triples


def _steps(node: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or post-processor, nested sequences flattened."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for child in node[key] for step in _steps(child, key)]
    return [node]


def _pre_tokenizer(node: dict[str, Any] | None) -> tuple[str | None, bool]:
    """The regular expression, and whether a space is put before the text."""
    pattern, prefix_space = None, False
    for step in _steps(node, "pretokenizers"):
        match step["type"]:
            case "Split" if "Regex" in step["pattern"] and pattern is None:
                pattern = step["pattern"]["Regex"]
            case "Split" if step["pattern"].get("String") == " ":
                pass  # Gemma: the normalizer has left no space to split at
            case "ByteLevel":
                prefix_space = prefix_space or bool(step.get("add_prefix_space"))
                if step.get("use_regex", True):
                    pattern = GPT2_PATTERN
            case "Metaspace":
                prefix_space = step.get("prepend_scheme", "always") != "never"
            case kind:
                raise VocabularyError(
                    f"pre-tokenizes with {kind}, which tokalign does not model; "
                    "supported are one Split by regex, ByteLevel and Metaspace"
                )
    return pattern, prefix_space


def _prepends(normalizer: dict[str, Any] | None) -> bool:
    return any(step["type"] == "Prepend" for step in _steps(normalizer, "normalizers"))


def _template_adds_bos(document: Mapping[str, Any]) -> bool:
    """Whether the post-processor's template begins with a special token."""
    for step in _steps(document.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing" and step["single"]:
            return "SpecialToken" in step["single"][0]
    return False
