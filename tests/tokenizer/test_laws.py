"""What holds for tokenizers of every kind of file, whatever their level."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from small_families import Step, family_document, isolated
from tokenizer_files import (
    added,
    byte_level,
    byte_level_document,
    character_document,
    library_tokenizer,
    tekken_document,
)
from tokenizers import Tokenizer as Library

from tokalign.errors import VocabularyError
from tokalign.runtime.chat import encode_prompt
from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.check_texts import plain_texts
from tokalign.tokenizer.foreign import ForeignTokenizer
from tokalign.tokenizer.ranks import read_tekken
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.spelling import byte_alphabet
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.tokenizer_json import read_tokenizer_json
from tokalign.tokenizer.vocabulary import TargetId

Document = dict[str, Any]
Make = Callable[[], Document]


def copied(document: Document) -> Document:
    return dict(json.loads(json.dumps(document)))


def adding(document: Document, *spellings: str, **how: Any) -> Document:
    """With added tokens after all others."""
    document = copied(document)
    ids = [*document["model"]["vocab"].values()] if "unk_id" not in document["model"] else []
    used = [*ids, len(document["model"]["vocab"]) - 1, *(t["id"] for t in document["added_tokens"])]
    start = 1 + max(used)
    document["added_tokens"] += [added(start + i, s, **how) for i, s in enumerate(spellings)]
    return document


def read(folder: Path, document: Document, name: str = "tokenizer.json") -> Tokenizer[Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    return read_tokenizer(folder)


MARKUP = "<tool_call>", "<|im_end|>"
KINDS: dict[str, Make] = {
    "bytes": byte_level_document,
    "whole pieces": lambda: byte_level_document(
        model={**byte_level_document()["model"], "ignore_merges": True}
    ),
    "characters": character_document,
    "Metaspace": lambda: family_document("Metaspace"),
    "Unigram": lambda: family_document("Unigram"),
    "WordPiece": lambda: family_document("WordPiece"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_markup_that_a_user_types_is_text(kind: str, tmp_path: Path) -> None:
    """Whether its id is in the model's vocabulary or beyond it."""
    tokenizer = read(tmp_path, adding(KINDS[kind](), *MARKUP))
    specials = tokenizer.vocabulary.special_ids
    assert set(MARKUP) < set(specials)
    unknown = {specials.get("<unk>"), specials.get("[UNK]")}
    control = set(specials.values()) - unknown
    for spelling in MARKUP if kind == "Unigram" else specials:
        for text in (spelling, f"kot {spelling} tak", f"a{spelling}"):
            found = [tokenizer.encode(text), *tokenizer.encode_batch([text])]
            if tokenizer.level is not Level.IDS_ONLY:
                found.append(tokenizer.encoder.encode(tokenizer.text_bytes(text)))
            assert all(ids == found[0] for ids in found)
            assert control.isdisjoint(found[0])
            if kind not in ("Unigram", "WordPiece"):  # every text can be spelled
                assert unknown.isdisjoint(found[0])
    for spelling in MARKUP:
        assert specials[spelling] in tokenizer.encode(f"kot {spelling}", specials=True)


def merges_swapped(document: Document) -> Document:
    document = copied(document)
    document["model"]["merges"][:2] = document["model"]["merges"][1::-1]
    return document


def changed(document: Document, **parts: Any) -> Document:
    return {**copied(document), **parts}


DIFFERENT: dict[str, Callable[[Document], Document]] = {
    "as it is": copied,
    "an added token in text": lambda one: adding(one, "kot kot", special=False),
    "another added token in text": lambda one: adding(one, "tak tak", special=False),
}
OF_THE_DOCUMENT: dict[str, Callable[[Document], Document]] = {
    "another normalizer": lambda one: changed(one, normalizer={"type": "Lowercase"}),
    "another pre-tokenizer": lambda one: changed(one, pre_tokenizer={"type": "Whitespace"}),
}
"""What only the document says where a tokenizer is not aligned."""


@pytest.mark.parametrize("kind", ["bytes", "Unigram", "WordPiece"])
def test_tokenizers_that_encode_differently_have_different_fingerprints(
    kind: str, tmp_path: Path
) -> None:
    more = {"the order of merges": merges_swapped} if kind == "bytes" else OF_THE_DOCUMENT
    found: dict[str, str] = {}
    for name, change in {**DIFFERENT, **more}.items():
        fingerprint = read(tmp_path / name, change(KINDS[kind]())).fingerprint
        assert fingerprint not in found
        found[fingerprint] = name
    again = read(tmp_path / "again", copied(KINDS[kind]()))
    assert found[again.fingerprint] == "as it is"


@pytest.mark.parametrize("kind", ["bytes", "characters", "Metaspace"])
def test_a_conversation_is_encoded_as_the_library_encodes_it(kind: str, tmp_path: Path) -> None:
    """So a dummy prefix is put where the library puts one: after a special token or not."""
    tokenizer = read(tmp_path, adding(KINDS[kind](), *MARKUP))
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    for text in (
        "kot<|im_end|>tak",
        "<|im_end|>kot",
        "kot <|im_end|> tak",
        "<|im_end|><tool_call>a",
    ):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, specials=True) == ids
    ids = tokenizer.encode("kot<|im_end|>tak", specials=True)
    at = 1 + ids.index(tokenizer.vocabulary.special_ids["<|im_end|>"])
    puts_space = tokenizer.vocabulary.tokens[ids[at]].startswith(b" ")
    assert puts_space == (kind == "characters")
    if tokenizer.spec.dummy_prefix:  # of what comes after such a prompt, it is dropped again
        assert tokenizer.opens_segment(ids[:at]) == puts_space
        assert not tokenizer.opens_segment(ids[: at - 1])
        assert tokenizer.opens_segment([])


def test_a_prompt_of_tekken_begins_as_in_mlx_lm(tmp_path: Path) -> None:
    """And with its BOS where mlx-lm is not there to be asked."""
    specials = [
        {"rank": rank, "token_str": spelling, "is_control": True}
        for rank, spelling in enumerate(("<unk>", "<s>", "</s>"))
    ]
    document = tekken_document(special_tokens=specials)
    assert read_tekken(document).opening == (1,)
    tokenizer = read(tmp_path, document, "tekken.json")
    assert tokenizer.vocabulary.roles.bos == 1
    assert encode_prompt(tokenizer, "kot") == load_tokenizer(tmp_path).encode("kot")


@pytest.mark.parametrize(
    ("spellings", "end"),
    [
        (("<|endoftext|>", "<|im_end|>"), "<|im_end|>"),
        (("<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
        (("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), "<|eot_id|>"),
        (("<eos>", "<end_of_turn>"), "<end_of_turn>"),
        (("<end_of_turn>", "<|im_end|>"), "<|im_end|>"),
        (("<|endoftext|>",), None),
    ],
)
def test_a_turn_ends_at_its_own_token(
    spellings: tuple[str, ...], end: str | None, tmp_path: Path
) -> None:
    tokenizer = read(tmp_path, adding(byte_level_document(), *spellings))
    ids, roles = tokenizer.vocabulary.special_ids, tokenizer.vocabulary.roles
    assert roles.turn_end == (None if end is None else ids[end])
    named = {ids[one] for one in spellings if one != "<end_of_turn>" or one == end}
    assert roles.eos == named | {ids["</s>"]}


def test_text_that_is_struck_through_ends_no_answer(tmp_path: Path) -> None:
    """Gemma has the tags of HTML as tokens, `<s>` and `</s>` among them."""
    document = byte_level_document(added_tokens=[added(263, "<eos>")])
    tags = {"<s>": 261, "</s>": 262}
    document["model"]["vocab"] |= tags
    document["added_tokens"] += [added(i, tag, **PLAIN) for tag, i in tags.items()]
    tokenizer = read(tmp_path, document)
    assert tokenizer.level is Level.ALIGNED
    assert (tokenizer.vocabulary.roles.bos, tokenizer.vocabulary.roles.eos) == (None, {263})
    assert tokenizer.encode("<s>kot</s>") == [261, *tokenizer.encode("kot"), 262]
    config = json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    (tmp_path / "tokenizer_config.json").write_text(config)
    named = read(tmp_path, document)
    assert (named.vocabulary.roles.bos, named.vocabulary.roles.eos) == (261, {262, 263})
    assert not {261, 262} & {*named.encode("<s>kot</s>")}


def test_ids_that_no_token_has_stay_empty(tmp_path: Path) -> None:
    """The other tokens are where the file says, and texts are encoded as the library does."""
    document = byte_level_document()
    document["model"]["vocab"] |= {"ok": 300, "</s>": 305}
    document["added_tokens"] = [added(305, "</s>")]
    tokenizer = read(tmp_path, document)
    library = library_tokenizer(tmp_path / "tokenizer.json")
    vocabulary = tokenizer.vocabulary
    assert len(vocabulary) == 306
    assert dict(vocabulary.special_ids) == {"</s>": 305}
    assert vocabulary.tokens[300] == b"ok"
    assert not any((*vocabulary.tokens[260:300], *vocabulary.tokens[301:]))
    for text in ("kot tak ok", "Zażółć", " </s> 7"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode([*ids[:2], 270, *ids[2:], 305]) == text


@pytest.mark.parametrize("spelling", ["ą", "ł", "▁", "x▁▁y"])
def test_an_added_token_is_its_own_text_where_bytes_have_an_alphabet(
    spelling: str, tmp_path: Path
) -> None:
    """ą and ł spell bytes there, and their ids, and a space mark is no space."""
    document = copied(byte_level_document())
    vocab = document["model"]["vocab"]
    index = vocab.get(spelling, 1 + max(*vocab.values(), 261))
    document["added_tokens"].append(added(index, spelling, special=False))
    tokenizer = read(tmp_path, document)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    is_byte = spelling in vocab
    assert (tokenizer.level is Level.IDS_ONLY) == is_byte
    for text in (f"kot {spelling}", f"a{spelling}\x05{spelling}b", "\x05\x42"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, specials=True) == ids
        assert is_byte or tokenizer.encode(text) == ids
        assert is_byte or tokenizer.decode(ids) == text


def over_characters(*steps: Step, **changes: Any) -> Document:
    """A tokenizer that spells spaces as marks in its pre-tokenizer."""
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [*steps]}
    return changed(character_document(normalizer=None, pre_tokenizer=pre_tokenizer), **changes)


def without_mark() -> Document:
    document = copied(character_document())
    model = document["model"]
    model["vocab"] = {s: i for i, s in enumerate(s for s in model["vocab"] if "▁" not in s)}
    model["merges"] = [pair for pair in model["merges"] if "▁" not in "".join(pair)]
    document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return document


def spelled_as_a_byte() -> Document:
    document = copied(byte_level_document())
    document["added_tokens"].append(added(4, byte_alphabet()[4]))
    return document


def metaspace(scheme: str, *, splits: bool = True) -> Step:
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}
    return {**step, "split": splits}


PLAIN: dict[str, Any] = {"special": False}
LATE: dict[str, Any] = {"special": False, "normalized": True}
PREFIXING = {"pre_tokenizer": byte_level(add_prefix_space=True)}
DOUBLING = {"type": "Replace", "pattern": {"Regex": r"\A▁"}, "content": "▁▁"}
ODD: dict[str, tuple[Make, tuple[str, ...]]] = {
    "a prefix before the first token alone": (
        lambda: adding(family_document("Metaspace"), "{}", **PLAIN),
        ("{}kot tak", "kot{}tak", "{}", "{} kot"),
    ),
    "a prefix after every added token": (
        lambda: adding(byte_level_document(**PREFIXING), "!kot", **PLAIN),
        ("tak!kottak", "!kottak", "a !kot b"),
    ),
    "a prefix before every piece": (
        lambda: over_characters({**isolated("kot"), "behavior": "Contiguous"}, metaspace("always")),
        ("takottak", "kot"),
    ),
    "a normalizer that makes spaces": (
        lambda: adding(byte_level_document(normalizer={"type": "Nmt"}), " kot", **PLAIN),
        ("tak\u200bkot", "tak kot"),
    ),
    "a normalizer that composes": (
        lambda: adding(byte_level_document(normalizer={"type": "NFC"}), "!ta", **PLAIN),
        ("kot!ta\u0328", "kot!ta", "!ta\u0301ta"),
    ),
    "a normalizer that doubles marks": (
        lambda: byte_level_document(normalizer=DOUBLING),
        ("▁kot", "kot▁"),
    ),
    "tokens that are found in turns": (
        lambda: adding(adding(byte_level_document(), "!t", **PLAIN), "a!t", **LATE),
        ("ka!t!ta", "a!t"),
    ),
    "text and markup that overlap": (
        lambda: adding(adding(byte_level_document(), "a<", **PLAIN), "<x>"),
        ("ta<x>", "<x>a<"),
    ),
    "a special token that spells a byte": (spelled_as_a_byte, ("a\x04b", "a\x05b")),
    "no token for a space": (without_mark, ("kot tak", " tak")),
    "an added character": (
        lambda: adding(byte_level_document(**PREFIXING), "ń", **PLAIN),
        ("koń", "ń"),
    ),
    "cuts at spaces before these are marks": (
        lambda: over_characters(isolated(GPT2_PATTERN), metaspace("never", splits=False)),
        (" kot tak " * 9000, "kot ▁tak"),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_tokenizer_is_read_as_the_library_reads_it(name: str, tmp_path: Path) -> None:
    """Or by its ids alone, where tokens are not the bytes of a text."""
    make, texts = ODD[name]
    tokenizer = read(tmp_path, make())
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    special = tokenizer.vocabulary.special_ids.values()
    for text in texts:
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, specials=True) == ids
        is_marked = tokenizer.spec.by_characters and "▁" in text  # where it is a space, then
        if set(special).isdisjoint(ids) and not is_marked:
            assert tokenizer.encode(text) == tokenizer.encode_batch([text])[0] == ids
            if tokenizer.level is not Level.IDS_ONLY:
                assert tokenizer.encoder.encode(tokenizer.text_bytes(text)) == ids
                assert tokenizer.vocabulary.bytes_of(ids) == tokenizer.text_bytes(text)


def test_tokens_that_either_order_finds_keep_a_tokenizer_aligned(tmp_path: Path) -> None:
    """DeepSeek V4 adds `<｜/table>｜` and, to be found later, `｜DSML｜`."""
    document = adding(adding(byte_level_document(), "<|x|", **PLAIN), "|kot|", **LATE)
    tokenizer = read(tmp_path, document)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.level is Level.ALIGNED
    for text in ("<|x|kot|", "a|kot|<|x|", "<|x|<|x||kot|kot|", "|kot<|x|kot||kot|"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == tokenizer.encode(text, specials=True) == ids


def test_words_around_a_lost_character_may_become_one_token(tmp_path: Path) -> None:
    """Llama's class of transformers drops what a SentencePiece vocabulary without bytes lacks. The
    check has no text in which words meet like that, for all its characters but one are known."""
    document = copied(
        character_document(normalizer=None, pre_tokenizer=metaspace("first", splits=False))
    )
    model = document["model"]
    known = {*"".join(plain_texts(read_tokenizer_json(document, {})))} - {*"\x07 ", *model["vocab"]}
    model["vocab"] |= {c: len(model["vocab"]) + i for i, c in enumerate([*sorted(known), "▁▁kot"])}
    model["merges"].append(["▁", "▁kot"])
    model |= {"unk_token": None, "byte_fallback": False}
    tokenizer = read(tmp_path, document)
    assert tokenizer.level is Level.ALIGNED
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("tak \x07 kot", " \x07 kot tak", "kot tak \x07"):
        ids = library.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.encoder.encode(tokenizer.text_bytes(text)) == ids


def test_a_prompt_at_which_the_library_panics_is_an_error(tmp_path: Path) -> None:
    document = adding(byte_level_document(), "{}", rstrip=True, **PLAIN)
    tokenizer = read(tmp_path, adding(document, "\n\n", lstrip=True, **PLAIN))
    with pytest.raises(VocabularyError, match="gives up"):
        tokenizer.encode("kot {}\n\n tak", specials=True)


def test_a_model_without_a_token_for_unknown_characters_encodes_the_others(tmp_path: Path) -> None:
    """The file names one that its vocabulary does not have."""
    document = copied(KINDS["WordPiece"]())
    letters = {letter: i for i, letter in enumerate("kot")}
    document["model"] |= {"unk_token": "[none]", "vocab": letters}
    document["added_tokens"] = []
    tokenizer = read(tmp_path, document)
    assert tokenizer.level is Level.IDS_ONLY
    assert tokenizer.fingerprint
    assert tokenizer.encode("k") == [0]
    with pytest.raises(VocabularyError, match="gives up"):
        tokenizer.encode("ż")


def test_what_a_program_puts_around_is_learned_of_the_characters_that_it_knows() -> None:
    class Letters:
        known: Mapping[str, int]

        def __init__(self, known: str) -> None:
            self.known = {letter: number for number, letter in enumerate(known, 1)}

        def get_vocab(self) -> Mapping[str, int]:
            return self.known

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            ids = [self.known[letter] for letter in text]
            return [0, *ids] if add_special_tokens else ids

    tokenizer = ForeignTokenizer[TargetId](Letters("ACGT"))
    assert tokenizer.spec.opening == (0,)
    assert tokenizer.encode("GAT") == [3, 1, 4]
    with pytest.raises(VocabularyError):
        ForeignTokenizer[TargetId](Letters(""))
