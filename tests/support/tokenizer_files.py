"""Small tokenizer files of every kind, made from nothing: sound ones, for tests to change."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer

from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.spec import Supplement
from tokalign.tokenizer.spelling import byte_alphabet

WORDS = ("ko", "kot", "ta", "tak", "ok")
"""What the tokenizers have besides bytes; each is made of one before it, or of letters."""

PAIRS = (("k", "o"), ("ko", "t"), ("t", "a"), ("ta", "k"), ("o", "k"))

LETTERS = "akot▁ąż"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def added(index: int, spelling: str, **options: bool) -> dict[str, Any]:
    """An entry of `added_tokens`: special, and found where it is spelled, unless told otherwise."""
    switched_off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": spelling, "special": True, **switched_off, **options}


def byte_level(**options: Any) -> dict[str, Any]:
    """The pre-tokenizer of byte-level BPE."""
    off = {"add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {"type": "ByteLevel", **off, **options}


def split(pattern: str, **options: Any) -> dict[str, Any]:
    """A Split by an expression with ByteLevel after it."""
    isolating = {"behavior": "Isolated", "invert": False, **options}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, **isolating}
    return {"type": "Sequence", "pretokenizers": [cut, byte_level(use_regex=False)]}


def template(*before: str, after: tuple[str, ...] = (), **ids: list[int]) -> dict[str, Any]:
    """A post-processor that puts special tokens around the text; ids: spelling -> ids."""

    def items(spellings: tuple[str, ...]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": spelling, "type_id": 0}} for spelling in spellings]

    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {name: {"id": name, "ids": found, "tokens": [name]} for name, found in ids.items()}
    single = [*items(before), text, *items(after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


_PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_NOTHING: dict[str, Any] = {"version": "1.0", **dict.fromkeys(_PARTS)}


def truncation(length: int) -> dict[str, Any]:
    """What cuts texts to so many tokens."""
    kind = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}
    return {"max_length": length, **kind}


def byte_level_document(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of 256 bytes, five words (ids 256 to 260) and `</s>` (261).

    changes: top-level keys.
    """
    vocab = {spelling: i for i, spelling in enumerate((*byte_alphabet(), *WORDS))}
    return {
        **_NOTHING,
        "added_tokens": [added(261, "</s>")],
        "pre_tokenizer": byte_level(),
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in PAIRS]},
        **changes,
    }


def character_document(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json with byte fallback, as converted from SentencePiece; changes: its keys."""
    spellings = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *WORDS, "▁kot", "▁▁"]
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    merges = [list(pair) for pair in (*PAIRS, ("▁", "kot"), ("▁", "▁"))]
    vocab = {spelling: i for i, spelling in enumerate(spellings)}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True}
    return {
        **_NOTHING,
        "added_tokens": [added(i, spellings[i]) for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
        "model": {**model, "unk_token": "<unk>", "fuse_unk": True},
        **changes,
    }


def library_tokenizer(path: Path) -> Tokenizer:
    """The library's own tokenizer of a file, to which special tokens in a text are text."""
    library = Tokenizer.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def sentencepiece_model() -> Any:
    """The protobuf message of a SentencePiece BPE model; `SerializeToString` makes the file."""
    model = proto.ModelProto()
    model.trainer_spec.model_type = 2
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = 3 + 256 + len(LETTERS) + len(WORDS)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((byte, 6) for byte in BYTES)]
    for spelling, kind in pieces:
        model.pieces.add(piece=spelling, score=0, type=kind)
    for rank, spelling in enumerate((*WORDS, *LETTERS)):
        model.pieces.add(piece=spelling, score=-rank, type=1)
    return model


_TOKENS = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS)]


def rank_lines() -> list[str]:
    """The lines of a file of tiktoken ranks; `RANK_SUPPLEMENT` says the rest."""
    return [f"{b64encode(token).decode()} {rank}" for rank, token in enumerate(_TOKENS)]


RANK_SUPPLEMENT = Supplement(pattern=GPT2_PATTERN, ignore_merges=True, specials={261: "</s>"})


def tekken_document(**changes: Any) -> dict[str, Any]:
    """A tekken.json of three special tokens, 256 bytes and five words; changes: its keys."""
    entries = [{"rank": i, "token_bytes": b64encode(t).decode()} for i, t in enumerate(_TOKENS)]
    config = {
        "pattern": GPT2_PATTERN,
        "default_vocab_size": 3 + len(entries),
        "default_num_special_tokens": 3,
    }
    return {"config": config, "vocab": entries, **changes}


def write_program(folder: Path) -> None:
    """A tokenizer that is a program: every letter is a token."""
    program = (
        "from transformers import PreTrainedTokenizer\n"
        "class Letters(PreTrainedTokenizer):\n"
        "    vocab_size = 4000\n"
        "    def get_vocab(self): return {chr(i): i for i in range(4000)}\n"
        "    def _tokenize(self, text, **_): return list(text)\n"
        "    def _convert_token_to_id(self, token): return ord(token) % 4000\n"
        "    def _convert_id_to_token(self, index): return chr(index)\n"
    )
    (folder / "tokenization_letters.py").write_text(program)
    auto_map = {"AutoTokenizer": ["tokenization_letters.Letters", None]}
    settings = {"tokenizer_class": "Letters", "auto_map": auto_map}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
