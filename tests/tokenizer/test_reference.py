"""What mlx-lm loads for a folder decides every id of a prompt, whatever files the folder has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked import check
from tokenizer_files import (
    added,
    byte_level_document,
    character_document,
    library_tokenizer,
    sentencepiece_model,
    template,
    write_program,
)

from tokalign.errors import MissingAssetError, UsageError, VocabularyError
from tokalign.names.hub import missing_from_tokenizer
from tokalign.runtime.chat import encode_prompt
from tokalign.tokenizer import tokenizer_json
from tokalign.tokenizer.files import open_tokenizer_file, read_spec
from tokalign.tokenizer.foreign import ForeignTokenizer
from tokalign.tokenizer.reference import reference_of_folder
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer

TEXTS = (
    *(
        "kot",
        " kot",
        "  tak  kot",
        "Zażółć\n\tgęślą",
        "a\u0328c\u0301 ĄĆ ąć",
        "🧶🐟",
        "\x00\u200b",
        "",
    ),
    *("</s>kot", "kot</s>", "<s>kot", "<neu> a <neu>b", "a<unk>b", "tak <mark> nie", "ok<mark>"),
)

Edit = Callable[[dict[str, Any], dict[str, Any], Path], None]


def write(folder: Path, document: dict[str, Any], edit: Edit, **config: Any) -> Path:
    """A folder of mlx-lm's layout whose document and settings were edited."""
    settings: dict[str, Any] = {}
    document = json.loads(json.dumps(document))
    edit(document, settings, folder)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def assert_prompts_are_the_same(folder: Path) -> Tokenizer[Any]:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = read_tokenizer(folder)
    again = read_tokenizer(folder)  # from its note
    for text in TEXTS:
        begins = theirs.bos_token is None or not text.startswith(theirs.bos_token)
        expected = theirs.encode(text, add_special_tokens=begins)
        assert encode_prompt(ours, text) == expected
        assert encode_prompt(again, text) == expected
    return ours


def adding(**options: bool) -> Edit:
    """An added token after all others, `<mark>`."""

    def edit(document: dict[str, Any], _settings: dict[str, Any], _folder: Path) -> None:
        document["added_tokens"].append(added(400, "<mark>", **options))

    return edit


def no_bos_in_the_file(document: dict[str, Any], settings: dict[str, Any], _: Path) -> None:
    document["post_processor"] = None
    settings |= {"add_bos_token": True, "bos_token": "</s>"}


def bos_and_eos_in_the_file(document: dict[str, Any], settings: dict[str, Any], _: Path) -> None:
    document["post_processor"] = template("</s>", after=("</s>",), **{"</s>": [261]})
    settings |= {"add_bos_token": False, "bos_token": "</s>"}


def beside(**settings: Any) -> Edit:
    def edit(_document: dict[str, Any], kept: dict[str, Any], _folder: Path) -> None:
        kept |= settings

    return edit


def in_an_old_file(_document: dict[str, Any], _settings: dict[str, Any], folder: Path) -> None:
    (folder / "added_tokens.json").write_text('{"<neu>": 262}')


def composed(document: dict[str, Any], _settings: dict[str, Any], _: Path) -> None:
    document["normalizer"] = {"type": "NFC"}
    document["added_tokens"].append(added(262, "a\u0328c\u0301", special=False, normalized=True))


def lowered(document: dict[str, Any], _settings: dict[str, Any], _: Path) -> None:
    document["normalizer"] = {"type": "Lowercase"}
    document["added_tokens"].append(added(262, "ĄĆ", special=False, normalized=True))


NEW = {"content": "<neu>", "special": True, "normalized": False}
EDITS: dict[str, Edit] = {
    "BOS in the settings alone": no_bos_in_the_file,
    "BOS and EOS in the file": bos_and_eos_in_the_file,
    "added_tokens_decoder": beside(added_tokens_decoder={"262": NEW}),
    "additional_special_tokens": beside(additional_special_tokens=["<neu>"]),
    "extra_special_tokens": beside(extra_special_tokens={"neu_token": "<neu>"}),
    "added_tokens.json": in_an_old_file,
    "an end that is nowhere else": beside(eos_token="<neu>"),
    "special tokens that are text": beside(split_special_tokens=True),
    "composed": composed,
    "lowered": lowered,
    "a hole before the last id": adding(),
    "a whole word": adding(single_word=True, special=False),
    "with its spaces": adding(lstrip=True, rstrip=True),
}


@pytest.mark.parametrize("name", EDITS)
def test_prompts_are_those_of_mlx_lm_and_the_level_stays(name: str, tmp_path: Path) -> None:
    write(tmp_path, byte_level_document(), EDITS[name])
    assert assert_prompts_are_the_same(tmp_path).level is Level.ALIGNED


@pytest.mark.parametrize("kind", ["llama", "gemma", "qwen2", "gpt2", "unheard_of"])
def test_the_class_that_a_model_type_chooses_decides(kind: str, tmp_path: Path) -> None:
    """Llama's puts its mark before a text unless a space is there; the file says always."""
    document = character_document() if kind in ("llama", "gemma") else byte_level_document()
    write(tmp_path, document, beside(), model_type=kind)
    assert assert_prompts_are_the_same(tmp_path).level is Level.ALIGNED


def test_a_token_of_space_marks_is_found_where_a_prompt_has_the_marks(tmp_path: Path) -> None:
    document = character_document()
    document["normalizer"] = document["normalizer"]["normalizers"][1]  # no dummy prefix: Gemma
    mark = document["model"]["vocab"]["▁▁"]
    document["added_tokens"].append(added(mark, "▁▁", special=False))
    write(tmp_path, document, beside(), model_type="unheard_of")
    tokenizer = assert_prompts_are_the_same(tmp_path)
    assert tokenizer.level is Level.ALIGNED
    for text in ("a▁▁kot", " ▁▁ kot"):
        ids = library_tokenizer(tmp_path / "tokenizer.json").encode(text).ids
        assert tokenizer.encode(text, specials=True) == ids != tokenizer.encode(text)


def test_a_vocabulary_and_merges_in_files_of_their_own_are_opened(tmp_path: Path) -> None:
    model = byte_level_document()["model"]
    assert missing_from_tokenizer(tmp_path) == ["tokenizer.json"]
    vocabulary = {**model["vocab"], "<|endoftext|>": 261}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(map(" ".join, model["merges"]))
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert not missing_from_tokenizer(tmp_path)
    assert assert_prompts_are_the_same(tmp_path).level is Level.ALIGNED


@pytest.mark.parametrize("kind", ["llama", "unheard_of"])
def test_sentencepiece_with_equal_scores_is_aligned(kind: str, tmp_path: Path) -> None:
    model = sentencepiece_model()
    for size in range(2, 9):
        model.pieces.add(piece="▁" * size, score=-1e9, type=1)
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert assert_prompts_are_the_same(tmp_path).level is Level.ALIGNED
    assert read_tokenizer(tmp_path / "tokenizer.model").level is Level.ALIGNED


def test_a_program_is_run_only_if_it_is_trusted(tmp_path: Path) -> None:
    write_program(tmp_path)
    with pytest.raises(UsageError, match="--trust-remote-code"):
        read_tokenizer(tmp_path)
    trusted = read_tokenizer(tmp_path, trust_remote_code=True)
    assert trusted.level is Level.IDS_ONLY
    assert trusted.encode("kot") == [*b"kot"]


@pytest.mark.parametrize(
    ("raised", "error", "reason"),
    [
        (ValueError("Install it with `pip install tiktoken`."), MissingAssetError, "tiktoken$"),
        (ImportError("no", name="blobfile"), MissingAssetError, "pip install blobfile$"),
        (ImportError("no", name="transformers.old"), VocabularyError, "imports transformers.old"),
    ],
)
def test_a_module_that_is_missing_is_named(
    raised: Exception,
    error: type[Exception],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoTokenizer

    def from_pretrained(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(error, match=reason):
        reference_of_folder(tmp_path, {})


def test_ids_alone_keep_what_is_around_a_prompt() -> None:
    class Around:
        bos_token, eos_token = "<s>", None

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [1] * add_special_tokens + [*text.encode()] + [2] * add_special_tokens

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode()

    tokenizer: Tokenizer[Any] = ForeignTokenizer(Around())
    assert encode_prompt(tokenizer, "ab") == [1, 97, 98, 2]


# -- a user's words --------------------------------------------------------------------------------


def test_the_check_refuses_a_reader_that_takes_markup_for_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = byte_level_document()
    document["added_tokens"].append(added(262, "<my_markup>", special=False))
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    file = open_tokenizer_file(tmp_path / "tokenizer.json")
    check(Tokenizer[Any](read_spec(file)), file)
    monkeypatch.setattr(tokenizer_json._Added, "is_text", lambda token, _: not token.special)
    with pytest.raises(VocabularyError, match="of a user's words"):
        check(Tokenizer[Any](read_spec(file)), file)


def test_what_the_byte_alphabet_does_not_spell_is_not_special(tmp_path: Path) -> None:
    """Command R's vocabulary has 1,403 emoji that stand raw, and that no text is encoded with."""
    document = byte_level_document(added_tokens=[added(262, "</s>")])
    document["model"]["vocab"]["🧶"] = 261
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = assert_prompts_are_the_same(tmp_path)
    assert tokenizer.level is Level.ALIGNED
    assert set(tokenizer.spec.specials) == {262}
    assert 261 not in tokenizer.encode("🧶", specials=True)
