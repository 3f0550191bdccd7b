"""Small tokenizers with the pipelines that families of models publish, trained in a moment.

The pipelines are steps of a tokenizer.json, written from memory of what they do; no file of theirs
is here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from polish import SENTENCES
from tokenizer_files import added, template, truncation
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN, KNOWN_PATTERNS
from tokalign.tokenizer.library import library_of
from tokalign.tokenizer.spec import byte_level
from tokalign.tokenizer.spelling import byte_alphabet

Step = dict[str, Any]


def isolated(pattern: str) -> Step:
    """A Split whose matches are pieces."""
    cut = {"Regex": pattern}
    return {"type": "Split", "pattern": cut, "behavior": "Isolated", "invert": False}


def digits(*, individual: bool) -> Step:
    """A Digits step."""
    return {"type": "Digits", "individual_digits": individual}


BYTE_LEVEL: Step = byte_level(None)[0]  # type: ignore[assignment]
GPT2: Step = {**BYTE_LEVEL, "use_regex": True}
PUNCTUATION: Step = {"type": "Punctuation", "behavior": "Contiguous"}
_MARKS = r"!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"
_LAST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O_PATTERN = max(KNOWN_PATTERNS, key=len)

PIPELINES: dict[str, tuple[Step, ...]] = {
    "SmolLM2": (digits(individual=True), GPT2),
    "DeepSeek V3": (
        isolated(r"\p{N}{1,3}"),
        isolated("[一-龥぀-ゟ゠-ヿ]+"),
        isolated(
            rf"[{_MARKS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LAST}"
        ),
        BYTE_LEVEL,
    ),
    "DeepSeek Coder": (
        isolated(r"[\r\n]"),
        isolated(r"\s?\p{L}+"),
        isolated(r"\s?\p{P}+"),
        isolated("[一-龥ࠀ-一가-퟿]+"),
        digits(individual=True),
        BYTE_LEVEL,
    ),
    "Falcon": (PUNCTUATION, GPT2, digits(individual=False), isolated("[0-9][0-9][0-9]")),
    "GPT-4o as converted": (
        {**isolated(GPT4O_PATTERN), "behavior": "Removed", "invert": True},
        BYTE_LEVEL,
    ),
    "BLOOM": (isolated(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTE_LEVEL),
    "Kimi K2": (
        isolated(
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|[^\r\n\p{L}\p{N}]?"
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LAST}"
        ),
        BYTE_LEVEL,
    ),
    "digits in threes from the right": (
        isolated(r"(?=(?:\d{3})+(?!\d))\d{1,3}|\d{1,3}"),
        isolated(GPT2_PATTERN),
        BYTE_LEVEL,
    ),
}
"""Over bytes: the steps by family."""

TEXTS = (
    *SENTENCES,
    "def add(a, b):\n\tif a == 10 and b == 2024:\n        return a+b  # sum\n\n\nprint(add(1, 22))",
    "The quick brown fox jumps over 13 lazy dogs; it's what they'd do, isn't it?",
    "他说:“你好,世界!”然后在2024年去了北京。カタカナとひらがな。",
    "قال: مرحبا بالعالم، ١٢٣ مرة.",
    "🐟👍🏽 ok 👩‍👩‍👧 <b>x</b>\n\n- a\n- b\t\tc",
)
"""What the tokenizers are trained on, and a part of what they are tested with."""


def _over_bytes(steps: tuple[Step, ...], **changes: Any) -> dict[str, Any]:
    """A byte-level tokenizer with these steps, as the content of a tokenizer.json."""
    tokenizer = library_of(pre_tokenizer={"type": "Sequence", "pretokenizers": list(steps)})
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>", "<s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return {**json.loads(tokenizer.to_str()), **changes}


def _over_characters(model: Any, trainer: Any, **parts: Any) -> dict[str, Any]:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return dict(json.loads(tokenizer.to_str()))


def _with_fallback(document: dict[str, Any]) -> dict[str, Any]:
    """The same with a token `<0xNN>` for each byte, after its own ones."""
    vocab = document["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    document["model"]["byte_fallback"] = True
    return document


def _adding(document: dict[str, Any], spellings: list[str], **options: bool) -> dict[str, Any]:
    """The same with added tokens that are found in text."""
    vocab = document["model"]["vocab"]
    size = 1 + max(*vocab.values(), *(token["id"] for token in document["added_tokens"]))
    options = {"special": False, **options}
    document["added_tokens"] += [
        added(size + i, spelling, **options) for i, spelling in enumerate(spellings)
    ]
    return document


def _neox(document: dict[str, Any]) -> dict[str, Any]:
    return _adding(document, [" " * size for size in range(2, 6)], normalized=True)


def _without(document: dict[str, Any], missing: bytes) -> dict[str, Any]:
    """The same without the tokens of these bytes, and without what is made of them."""
    letters = {byte_alphabet()[byte] for byte in missing}
    model = document["model"]
    kept = [token for token in model["vocab"] if not letters & set(token)]
    model["vocab"] = {token: i for i, token in enumerate(kept)}
    model["merges"] = [pair for pair in model["merges"] if not letters & set("".join(pair))]
    for token in document["added_tokens"]:
        token["id"] = model["vocab"][token["content"]]
    return document


def _character_bpe(**parts: Any) -> dict[str, Any]:
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    model = models.BPE(unk_token="<unk>", fuse_unk=True)
    return _with_fallback(_over_characters(model, trainer, **parts))


def _gemma() -> dict[str, Any]:
    """Spaces become marks, nothing is cut, and line ends, tabs and tags are added tokens."""
    document = _character_bpe(
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
    )
    line_ends = ["\n" * size for size in range(1, 5)]
    spellings = [*line_ends, "▁▁", "▁▁▁", "\t", "\t\t", "<b>", "</b>"]
    vocab = document["model"]["vocab"]
    vocab |= {s: len(vocab) + i for i, s in enumerate(t for t in spellings if t not in vocab)}
    merges = document["model"]["merges"]
    merges += [pair for pair in (["▁", "▁"], ["▁▁", "▁"]) if pair not in merges]
    document["added_tokens"] += [added(vocab[s], s, special=False) for s in spellings]
    return document


def _llama() -> dict[str, Any]:
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return _character_bpe(normalizer=normalizers.Sequence(marks))


def _metaspace(scheme: str, *, split: bool) -> dict[str, Any]:
    return _character_bpe(
        pre_tokenizer=pre_tokenizers.Metaspace("▁", scheme, split),
        decoder=decoders.Metaspace("▁", scheme),
    )


def _unigram() -> dict[str, Any]:
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    steps = [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
    return _over_characters(
        models.Unigram(),
        trainer,
        normalizer=normalizers.Sequence(steps),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )


def _wordpiece() -> dict[str, Any]:
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    return _over_characters(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        normalizer=normalizers.BertNormalizer(lowercase=True),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )


_BYTES = PIPELINES["SmolLM2"][-1:]

_MAKE: Mapping[str, Any] = {
    **{name: lambda steps=steps: _over_bytes(steps) for name, steps in PIPELINES.items()},
    "SmolLM2, bytes missing": lambda: _without(
        _over_bytes(PIPELINES["SmolLM2"]), b"\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2\xf5\xff"
    ),
    "Pythia": lambda: _neox(
        _without(
            _over_bytes(_BYTES, normalizer={"type": "NFC"}),
            bytes([0xC0, 0xC1, *range(0xF5, 0x100)]),
        )
    ),
    "GPT-NeoX": lambda: _neox(_over_bytes(_BYTES)),
    "NFKC over bytes": lambda: _over_bytes(_BYTES, normalizer={"type": "NFKC"}),
    "cut to eight tokens": lambda: _over_bytes(_BYTES, truncation=truncation(8)),
    "GLM-4": lambda: _over_bytes(
        _BYTES, post_processor=template("</s>", "<s>", **{"</s>": [0], "<s>": [1]})
    ),
    "Gemma": _gemma,
    "Llama 2": _llama,
    "Phi-3.5": lambda: _adding(_llama(), ["<|user|>", "<|end|>"], rstrip=True, special=True),
    "Metaspace": lambda: _metaspace("first", split=True),
    "Unigram": _unigram,
    "WordPiece": _wordpiece,
}

FAMILIES = tuple(_MAKE)
BY_TEXT, IDS_ONLY = frozenset({"Unigram"}), frozenset({"WordPiece"})


@cache
def family_document(name: str) -> dict[str, Any]:
    """The content of the tokenizer.json of a family. Not to be changed."""
    return dict(_MAKE[name]())


def write_family(folder: Path, name: str) -> Path:
    """Write the tokenizer of a family; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(family_document(name)))
    return folder
