"""SentencePiece BPE vocabularies for the demo pair, each also written as an equal `tokenizer.json`.

SentencePiece stores pieces with scores and no merges: it joins the neighbours whose union is the
best-scored piece. The same rule as a list of merges: every split of a piece into two pieces, in the
order of the pieces.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

SPACE = "▁"
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, END_OF_TURN = 2, 4
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_pieces(lines: Iterable[str], n_pieces: int, longest: int) -> bytes:
    """Train `n_pieces` pieces of at most `longest` characters; return the `tokenizer.model`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=n_pieces,
        max_sentencepiece_length=longest,
        max_sentence_length=1 << 15,
        control_symbols=list(SPECIAL[3:]),
        byte_fallback=True,
        split_digits=True,
        # The text must come back byte for byte: nothing is normalized, no space is dropped.
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


def list_merges(pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """List every split of a piece into two pieces, best pieces first.

    Example: ["ie", "i", "e"] -> ("i", "e"). Expects the pieces by falling score.
    """
    known = frozenset(pieces)
    for piece in pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]


def to_tokenizer_json(model: bytes) -> dict[str, Any]:
    """Express a SentencePiece BPE model as the `tokenizer.json` that encodes alike."""
    spm = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(spm.get_piece_size())
    ordinary = [
        spm.id_to_piece(i)
        for i in ids
        if not (spm.is_control(i) or spm.is_unknown(i) or spm.is_byte(i))
    ]
    special_tokens = [_added_token(i) for i in range(len(SPECIAL))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": SPACE}, _replace(" ", SPACE)],
        },
        "pre_tokenizer": None,
        "post_processor": _begin_with(SPECIAL[1]),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                _replace(SPACE, " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": SPECIAL[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {spm.id_to_piece(i): i for i in ids},
            "merges": list(list_merges(ordinary)),
        },
    }


def to_tokenizer_config() -> dict[str, Any]:
    """Return `tokenizer_config.json`: roles of the special tokens and the ChatML template."""
    return {
        # Loads tokenizer.json as it stands; a class of its own could rebuild it differently.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[END_OF_TURN],
        "unk_token": SPECIAL[0],
        "pad_token": SPECIAL[END_OF_TEXT],
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write_tokenizer(model: bytes, folder: Path) -> None:
    """Write `tokenizer.model`, `tokenizer.json` and `tokenizer_config.json` into `folder`."""
    (folder / "tokenizer.model").write_bytes(model)
    _write_json(folder / "tokenizer.json", to_tokenizer_json(model))
    _write_json(folder / "tokenizer_config.json", to_tokenizer_config())


def _added_token(token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": SPECIAL[token_id], **flags, "special": True}


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _begin_with(token: str) -> dict[str, Any]:
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {token: {"id": token, "ids": [SPECIAL.index(token)], "tokens": [token]}},
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
