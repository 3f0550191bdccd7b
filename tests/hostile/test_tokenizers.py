"""Tokenizer files of strangers: each is used as its library uses it, or refused in one line.

Every file is made here, from a sound one or from nothing. Nothing may crash, hang, or be read with
other ids than the library's.
"""

from __future__ import annotations

import json
import os
import re
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from polish import SENTENCES, texts
from sentencepiece import SentencePieceProcessor
from tokenizer_files import (
    RANK_SUPPLEMENT,
    added,
    byte_level,
    byte_level_document,
    character_document,
    library_tokenizer,
    rank_lines,
    sentencepiece_model,
    split,
    tekken_document,
    template,
    truncation,
)

from tokalign.errors import MissingAssetError, VocabularyError
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.bpe.expressions import GPT2_PATTERN
from tokalign.tokenizer.limits import MAX_FILE_BYTES, MAX_IDS
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level, Supplement
from tokalign.tokenizer.spelling import SPACE_MARK
from tokalign.tokenizer.tokenizer import Tokenizer

SECONDS = 60
"""After this long a case counts as hanging; the slowest takes 3 s."""


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the case took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Hostile(NamedTuple):
    """A hostile file. content: of `name`.

    reason: what must be said if it is refused, or of what keeps it from being aligned.
    """

    case: str
    content: bytes
    reason: str
    name: str = "tokenizer.json"
    supplement: Supplement | None = None


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same with another model."""
    return {**document, "model": {**document["model"], **changes}}


def of_bytes(case: str, reason: str = "", /, **changes: Any) -> Hostile:
    return Hostile(case, as_json(byte_level_document(**changes)), reason)


def of_characters(case: str, reason: str = "", /, **changes: Any) -> Hostile:
    return Hostile(case, as_json(character_document(**changes)), reason)


def of_model(case: str, reason: str = "", /, **changes: Any) -> Hostile:
    return Hostile(case, as_json(changed(byte_level_document(), **changes)), reason)


def of_vocab(case: str, reason: str, **ids: Any) -> Hostile:
    vocab = byte_level_document()["model"]["vocab"]
    return of_model(case, reason, vocab={**vocab, **ids})


def normalizers() -> Iterator[Hostile]:
    bert = dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True)
    plain = ("Lowercase", "NFKC", "NFD", "NFKD", "StripAccents", "Nmt", "ByteLevel")
    lone: list[dict[str, Any]] = [
        *({"type": kind} for kind in plain),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "o"},
        {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
        {"type": "Prepend", "prepend": "x"},
        {"type": "BertNormalizer", "strip_accents": None, **bert},
    ]
    takes_spaces = character_document()["normalizer"]["normalizers"]
    for step in lone:
        kind, name = step["type"], f"{step['type']} {step.get('pattern', '')}"
        yield of_bytes(f"normalizer {name} over bytes", normalizer=step)
        if kind in ("Lowercase", "NFKC", "Replace", "Prepend"):
            inside = {"type": "Sequence", "normalizers": [step, *takes_spaces]}
            yield of_characters(f"normalizer {name} in a sequence", normalizer=inside)
    prepend, replace = takes_spaces
    twice = {"type": "Sequence", "normalizers": [prepend, prepend, replace]}
    yield of_characters("normalizer Prepend twice", normalizer=twice)
    yield of_characters("normalizer that leaves spaces", normalizer=prepend)
    yield of_characters("no normalizer with byte fallback", normalizer=None)
    yield of_bytes("normalizer of no known kind", "any variant", normalizer={"type": "Up"})
    yield of_bytes("normalizer that is a list", "download it again", normalizer=[])
    deep: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(200):
        deep = {"type": "Sequence", "normalizers": [deep]}
    yield of_bytes("normalizer under 200 sequences", "recursion limit", normalizer=deep)


MARK = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}


def metaspace(**options: Any) -> dict[str, Any]:
    return character_document(normalizer=None, pre_tokenizer=MARK | options)


def in_turn(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


def pre_tokenizers() -> Iterator[Hostile]:
    for behavior in ("Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        cut = split(GPT2_PATTERN, behavior=behavior)
        yield of_bytes(f"Split {behavior}", pre_tokenizer=cut)
    yield of_bytes("Split inverted", pre_tokenizer=split(GPT2_PATTERN, invert=True))
    plain = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}
    several = in_turn(plain, byte_level(use_regex=False))
    yield of_bytes("Split at a string", pre_tokenizer=several)
    by_regex = split("a|[^a]+")["pretokenizers"][0]
    yield of_bytes("two Splits", pre_tokenizer=in_turn(by_regex, by_regex, byte_level()))
    for options in ({"use_regex": True}, {"use_regex": False, "add_prefix_space": True}):
        several = in_turn(by_regex, byte_level(**options))
        yield of_bytes(f"Split and {options}", pre_tokenizer=several)
    yield of_bytes("no ByteLevel", pre_tokenizer=by_regex)
    yield of_bytes("no pre-tokenizer", pre_tokenizer=None)
    for step in (
        *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")),
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "CharDelimiterSplit", "delimiter": "-"},
        {"type": "UnicodeScripts"},
    ):
        yield of_bytes(f"pre-tokenizer {step['type']}", pre_tokenizer=in_turn(step, byte_level()))
    for odd in ({"replacement": "_"}, {"prepend_scheme": "last"}, {"split": True}):
        reason = "" if "split" in odd else "prepend_scheme|spells neither"
        yield Hostile(f"Metaspace {odd}", as_json(metaspace(**odd)), reason)
    yield of_characters("Metaspace and Prepend", pre_tokenizer=MARK)
    yield of_characters("byte fallback and ByteLevel", pre_tokenizer=byte_level())


def expressions() -> Iterator[Hostile]:
    for case, pattern in (
        ("unbalanced", "(a"),
        ("of an unknown property", r"\p{Kotek}+"),
        ("that backtracks for ever", "(a+)+$"),
        ("that backtracks without an anchor", "(?:k|kk)+o"),
        ("that only the library finds hard", r"(?:\s+\s+)+x|."),
        ("with a look-behind", "(?<=a)b|."),
        ("with a look-ahead", "a(?=b)|."),
        ("with a back reference", r"(a)\1|."),
        ("with characters of words", r"\w+|\W+"),
        ("that matches nothing", r"(?i:kot)?|\s+|\p{N}*(?!\S)"),
        ("with a conditional", "(a)?(?(1)b|c)"),
        ("that is fuzzy", "(?:abc){e<=1}|."),
        ("with a comment", "(?#x)a|."),
        ("of verbose style", "(?x) a # b"),
        ("with a set in a set", "[a[b-d]]+|."),
        ("that is empty", ""),
        ("of 10,000 characters", "a|" * 5000),
        ("of 4,000 groups", "(" * 4000 + "a" + ")" * 4000),
        ("of big counts", "(?:(?:(?:a{1,99}){1,99}){1,99})o|."),
    ):
        yield of_bytes(f"expression {case}", pre_tokenizer=split(pattern))
    number = split("a")
    number["pretokenizers"][0]["pattern"]["Regex"] = 7
    yield of_bytes("expression that is a number", pre_tokenizer=number)


_NO_ID = "Expected `int`|out of range|the id"


def models() -> Iterator[Hostile]:
    characters = character_document()["model"]
    whole = {**characters, "vocab": characters["vocab"] | {"▁kok": 300}, "ignore_merges": True}
    yield of_characters("a token that is a whole piece only", "no merges make", model=whole)
    for kind in ("Unigram", "WordPiece", "WordLevel"):
        yield of_model(f"model {kind}", "read", type=kind)
    yield of_model("dropout", "has dropout", dropout=0.1)
    yield of_model("prefix of pieces", "continuing_subword_prefix", continuing_subword_prefix="##")
    yield of_model("suffix of words", "end_of_word_suffix", end_of_word_suffix="</w>")
    yield of_model("byte fallback that is a word", "Expected `bool", byte_fallback="no")
    yield of_model("no vocabulary", "no vocabulary", vocab={})
    yield of_model("vocabulary that is a path", "Expected `object", vocab="/etc/passwd")
    yield of_model("vocabulary that is a list", "no list of merges|no token", vocab=[["a", 0]])
    yield of_model("no merges", "no list of merges", merges=None)
    for case, index in (
        ("ten billion", 10**10),
        ("200 million", 2 * 10**8),
        ("the first beyond the limit", MAX_IDS),
        ("minus one", -1),
        ("a fraction", 1.5),
        ("a string", "7"),
        ("true", True),
        ("null", None),
        ("not a number", float("nan")),
        ("infinite", float("inf")),
        ("a number of 4,000 digits", 10**4000),
    ):
        yield of_vocab(f"id {case}", _NO_ID, kotki=index)
        entry = [added(index, "<x>")]
        yield of_bytes(f"added id {case}", _NO_ID, added_tokens=entry)
    yield of_vocab("id twice", "the id 5 to two tokens", kotki=5)
    yield of_vocab("token of 2,000 bytes", "token of 2,000 bytes", **{"k" * 2000: 262})
    yield of_vocab("token that is not byte-level", "not those", **{"▁kot": 262})
    small = {"k": 0, "o": 1, "ko": 2}
    yield of_model("bytes missing", "not those", vocab=small, merges=[["k", "o"]])
    fallback = character_document()
    del fallback["model"]["vocab"]["<0x41>"]
    yield Hostile("byte fallback with a gap", as_json(fallback), "otherwise")
    fallback = character_document()
    fallback["model"]["byte_fallback"] = False
    reason = "normalizes with|cannot be spelled"
    yield Hostile("pieces without byte fallback", as_json(fallback), reason)
    fallback = character_document()
    fallback["model"]["vocab"] |= {" kot": 999}
    yield Hostile("two spellings of a token", as_json(fallback), "otherwise")
    for case, merges, reason in (
        ("unknown piece", [["k", "zz"]], "has no token zz"),
        ("unknown result", [["k", "k"]], "has no token kk"),
        ("repeated", [["k", "o"], ["t", "a"], ["k", "o"]], "a merge twice"),
        ("of three pieces", [["k", "o", "t"]], "download it again"),
        ("of one string with two spaces", ["k o t"], "download it again"),
        ("of numbers", [[1, 2]], "Expected `str`"),
        ("that is a number", [3], "download it again"),
        ("into an added token", [["<", "/"]], "added token"),
    ):
        vocab = dict(byte_level_document()["model"]["vocab"])
        entries = [added(261, "</s>")]
        if "added" in case:
            vocab |= {"</": 262}
            entries.append(added(262, "</"))
        model = {"type": "BPE", "vocab": vocab, "merges": merges}
        yield of_bytes(f"merge {case}", reason, model=model, added_tokens=entries)


def added_tokens() -> Iterator[Hostile]:
    for option in ("lstrip", "rstrip", "single_word"):
        entry = added(261, "</s>", **{option: True})
        yield of_bytes(f"added token with {option}", "otherwise", added_tokens=[entry])
    entries = [added(i, ("<unk>", "<s>", "</s>")[i], normalized=i == 1) for i in range(3)]
    yield of_characters("added token normalized", "not those", added_tokens=entries)
    for spelling in ("kotek", "  ", "\n\n", "1", "."):
        entry = added(261, spelling, special=False)
        reason = "in ordinary text|vocabulary says otherwise"
        yield of_bytes(f"added token {spelling!r}", reason, added_tokens=[entry])
    entries = [added(261, "</s>"), added(261, "<s>")]
    yield of_bytes("added id twice", "twice", added_tokens=entries)
    entries = [added(261, "</s>"), added(262, "</s>")]
    yield of_bytes("added spelling twice", "not those", added_tokens=entries)
    yield of_bytes("added id after a gap", "not those", added_tokens=[added(500, "</s>")])
    yield of_bytes("added id of a token", "says otherwise", added_tokens=[added(256, "</s>")])
    yield of_bytes("added token of another id", "says otherwise", added_tokens=[added(261, "kot")])
    yield of_bytes("added token without spelling", "length >= 1", added_tokens=[added(261, "")])
    for special in (True, False):
        entry = added(261, "ab" * 30_000, special=special)
        name = f"added {'special ' * special}token of 60,000 bytes"
        yield of_bytes(name, "at most 1,024", added_tokens=[entry])
    entry = {"id": 261, "special": True}
    yield of_bytes("added token without content", "field `content`", added_tokens=[entry])
    yield of_bytes("added tokens that are a number", "download it again", added_tokens=5)
    entry = added(261, "<x>") | {"lstrip": 1}
    yield of_bytes("added token of odd switch", "Expected `bool`", added_tokens=[entry])


def around_the_model() -> Iterator[Hostile]:
    yield of_bytes("truncation", truncation=truncation(8))
    filled = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
    filled |= {"pad_to_multiple_of": None, "pad_token": "k"}
    yield of_bytes("padding", padding=filled)
    ends = template(after=("</s>",), **{"</s>": [261]})
    yield of_bytes("post-processor that ends texts", post_processor=ends)
    begins = template("</s>", **{"</s>": [261]})
    yield of_bytes("post-processor without BOS", post_processor=begins)
    twice = {"type": "Sequence", "processors": [begins, begins]}
    yield of_bytes("two templates", post_processor=twice)
    for kind in ("BertProcessing", "RobertaProcessing"):
        step = {"type": kind, "sep": ["</s>", 261], "cls": ["</s>", 261]}
        yield of_bytes(f"post-processor {kind}", post_processor=step)
    unknown = template("<s>")
    yield of_bytes("template of an unlisted token", "no entry found", post_processor=unknown)


def broken_json() -> Iterator[Hostile]:
    whole = as_json(byte_level_document())
    for case, content, reason in (
        ("empty file", b"", "is empty"),
        ("white space only", b" \n", "download it again"),
        ("half a file", whole[: len(whole) // 2], "download it again"),
        ("text after the end", whole + b"}", "download it again"),
        ("100,000 brackets", b"[" * 100_000, "recursion depth"),
        ("100,000 braces", b'{"a":' * 100_000, "recursion depth"),
        ("invalid UTF-8", whole.replace(b"kot", b"k\xfft"), "download it again"),
        ("null bytes", b"\0" * 64, "download it again"),
        ("a lone surrogate", whole.replace(b'"ok"', b'"\\ud800"'), "read|no token|alphabet"),
        ("a list", b"[]", "download it again"),
        ("null", b"null", "download it again"),
        ("a number of 10,000 digits", b"1" * 10_000, "download it again"),
        ("an object without model", b"{}", "no 'model'"),
        ("a model that is a list", b'{"model": []}', "Expected `object`"),
        ("a web page", b"<!doctype html><title>404</title>", "download it again"),
        ("a pointer to large storage", b"version https://git-lfs\noid sha256:0\n", "again"),
        ("UTF-16", whole.decode().encode("utf-16"), "download it again"),
    ):
        yield Hostile(case, content, reason)


def changed_model(**fields: Any) -> bytes:
    model = sentencepiece_model()
    for name, value in fields.items():
        part, _, field = name.partition("__")
        setattr(getattr(model, part), field, value)
    content: bytes = model.SerializeToString()
    return content


def with_piece(piece: str, kind: int, score: float = -99.0) -> bytes:
    model = sentencepiece_model()
    model.pieces.add(piece=piece, score=score, type=kind)
    content: bytes = model.SerializeToString()
    return content


def sentencepiece_files() -> Iterator[Hostile]:
    whole = changed_model()
    without = sentencepiece_model()
    del without.pieces[3 + 65]
    no_bytes = sentencepiece_model()
    del no_bytes.pieces[3 : 3 + 256]
    no_bytes.trainer_spec.byte_fallback = False
    for case, content, reason in (
        ("cut in two", whole[: len(whole) // 2 + 1], "not BPE"),  # its kind, at the end, is gone
        ("random bytes", Random(4).randbytes(4096), "download it again"),
        ("text", b"to nie jest model\n" * 9, "download it again"),
        ("without pieces", b"\x12\x00", "holds no SentencePiece"),
        ("Unigram", changed_model(trainer_spec__model_type=1), "not BPE"),
        ("words", changed_model(trainer_spec__model_type=3), "not BPE"),
        ("NFKC", changed_model(normalizer_spec__precompiled_charsmap=b"\4\0\0\0"), "normalizes"),
        ("extra spaces", changed_model(normalizer_spec__remove_extra_whitespaces=True), "removes"),
        ("bare spaces", changed_model(normalizer_spec__escape_whitespaces=False), "otherwise"),
        ("suffix", changed_model(trainer_spec__treat_whitespace_as_suffix=True), "at the end"),
        ("unused piece", with_piece("kotek", 5), "unused piece"),
        ("user-defined word", with_piece("kotek", 4), "user-defined symbol"),
        ("empty piece", with_piece("", 1), "empty or holds a space"),
        ("piece with a space", with_piece("a b", 1), "empty or holds a space"),
        ("byte of type normal", with_piece("<0x41>", 1), "spelled as a byte"),
        ("normal of type byte", with_piece("kotek", 6), "spelled as a byte"),
        ("repeated piece", with_piece("kot", 1), "with two tokens|read|otherwise"),
        ("equal scores", with_piece("kota", 1, -1.0), "order of its merges"),
        ("score that is no number", with_piece("kota", 1, float("nan")), "order of its merges"),
        ("byte missing", without.SerializeToString(), "otherwise"),
        ("no byte fallback", no_bytes.SerializeToString(), "byte fallback"),
        ("piece of 3,000 letters", with_piece("k" * 3000, 1), "token of 3,000 bytes"),
    ):
        yield Hostile(f"SentencePiece: {case}", content, reason, "tokenizer.model")


def rank_files() -> Iterator[Hostile]:
    lines = rank_lines()
    for case, changed, reason in (
        ("half a line", [*lines, "a290"], "no `base64 rank` in line 262"),
        ("rank of ten billion", [*lines, "eHg= 9999999999"], "the id 9999999999"),
        ("rank of 30 digits", [*lines, f"eHg= {10**30}"], "the id 1000000"),
        ("negative rank", [*lines, "eHg= -1"], "the id -1"),
        ("rank twice", [*lines, "eHg= 7"], "the id 7 to two tokens"),
        ("token twice", [*lines, f"{lines[256].split()[0]} 300"], "repeated token"),
        ("no base64", [*lines, "!!!! 300"], "download it again"),
        ("byte missing", lines[1:], ""),
        ("long token", [*lines, f"{b64encode(b'k' * 2000).decode()} 261"], "token of 2,000"),
    ):
        content = "\n".join(changed).encode()
        yield Hostile(f"ranks: {case}", content, reason, "x.tiktoken", RANK_SUPPLEMENT)
    content = "\n".join(lines).encode()
    yield Hostile("ranks: no supplement", content, "lack the pre-tokenizer", "x.tiktoken")
    wrong = Supplement(pattern="(a")
    yield Hostile("ranks: invalid expression", content, "does not read", "x.tiktoken", wrong)


def tekken_files() -> Iterator[Hostile]:
    whole = tekken_document()
    config, vocab = whole["config"], whole["vocab"]
    for case, changes, reason in (
        ("ten billion ids", {"config": {**config, "default_vocab_size": 10**10}}, "Expected `int`"),
        ("specials below zero", {"config": {**config, "default_num_special_tokens": -1}}, ">= 0"),
        ("words for sizes", {"config": {**config, "default_vocab_size": "big"}}, "again"),
        ("no config", {"config": None}, "download it again"),
        ("no expression", {"config": {**config, "pattern": None}}, "Expected `str`"),
        ("bad expression", {"config": {**config, "pattern": "[z-a]"}}, "does not read"),
        ("rank twice", {"vocab": [*vocab, {**vocab[7]}]}, "rank 7 in place 261"),
        ("rank left out", {"vocab": vocab[:90] + vocab[91:]}, "rank 91 in place 90"),
        ("no base64", {"vocab": [*vocab[:-1], {"rank": 260, "token_bytes": "?"}]}, "again"),
        ("empty token", {"vocab": [*vocab[:-1], {"rank": 260, "token_bytes": ""}]}, "empty token"),
        ("entry of text", {"vocab": [*vocab, "kot"]}, "download it again"),
        ("empty vocabulary", {"vocab": []}, "download it again"),
        ("special outside", {"special_tokens": [{"rank": 900, "token_str": "<x>"}]}, "below 3"),
        ("special of text", {"special_tokens": ["<x>"]}, "download it again"),
    ):
        content = as_json(tekken_document(**changes))
        yield Hostile(f"tekken: {case}", content, reason, "tekken.json")


HOSTILE = [
    *normalizers(),
    *pre_tokenizers(),
    *expressions(),
    *models(),
    *added_tokens(),
    *around_the_model(),
    *broken_json(),
    *sentencepiece_files(),
    *rank_files(),
    *tekken_files(),
]


def assert_clear(error: BaseException, path: Path, reason: str = "") -> None:
    """One line that names the file, says the reason and, after a semicolon, what to do."""
    message = str(error)
    assert re.search(reason, message)
    assert message.startswith(str(path))
    assert message.isprintable()
    assert "; " in message
    assert len(message) < len(str(path)) + 520


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.case)
def test_a_hostile_file_is_used_as_its_library_uses_it_or_refused(
    case: Hostile, tmp_path: Path
) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    theirs = library_reading(path)
    try:
        ours: Tokenizer[Any] = read_tokenizer(path, case.supplement)
    except VocabularyError as error:
        assert_clear(error, path, case.reason)
        return
    assert theirs is not None or path.name != "tokenizer.json"  # others are mlx-lm's to open
    if ours.level is not Level.ALIGNED:
        assert re.search(case.reason, ours.spec.why)
    if theirs is not None and "dropout" not in case.case:
        for text in SENTENCES:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def library_reading(path: Path) -> Any:
    """The library's tokenizer of a tokenizer.json, if it reads the file."""
    try:
        return library_tokenizer(path) if path.suffix == ".json" else None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | TimeoutError):
            raise
        return None


def without_runs_of_spaces(document: dict[str, Any]) -> dict[str, Any]:
    document = deepcopy(document)
    document["model"]["vocab"].pop("▁▁")
    document["model"]["merges"].remove(["▁", "▁"])
    return document


def with_nfc(document: dict[str, Any]) -> dict[str, Any]:
    steps = [{"type": "NFC"}, *filter(None, [document["normalizer"]])]
    return {**document, "normalizer": {"type": "Sequence", "normalizers": steps}}


BYTES, CHARACTERS = byte_level_document(), character_document()
GEMMA = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
TAKES_SPACES = CHARACTERS["normalizer"]["normalizers"][1]
VOCAB, LAST = BYTES["model"]["vocab"], MAX_IDS - 1
NO_SPECIALS = byte_level_document(added_tokens=[])

MODELLED: dict[str, dict[str, Any]] = {
    "byte-level": BYTES,
    "NFC": byte_level_document(normalizer={"type": "NFC"}),
    "NFC in a sequence": with_nfc(BYTES),
    "NFC over characters": with_nfc(CHARACTERS),
    "no normalizers": byte_level_document(normalizer={"type": "Sequence", "normalizers": []}),
    "add_prefix_space": byte_level_document(pre_tokenizer=byte_level(add_prefix_space=True)),
    "no expression": byte_level_document(pre_tokenizer=byte_level(use_regex=False)),
    "one Split": byte_level_document(pre_tokenizer=split(GPT2_PATTERN)),
    "a Split that leaves gaps": byte_level_document(pre_tokenizer=split(r"\p{L}+|\p{N}{1,2}")),
    "a Split that looks far": byte_level_document(pre_tokenizer=split("(?:k|ta|o)+ż|[kota]")),
    "ignore_merges": changed(BYTES, ignore_merges=True),
    "dropout of zero": changed(BYTES, dropout=0.0),
    "merges as strings": changed(BYTES, merges=["k o", "ko t", "t a"]),
    "holes in the ids": changed(NO_SPECIALS, vocab=VOCAB | {"ot": 300}),
    "the last id": changed(NO_SPECIALS, vocab=VOCAB | {"ot": LAST}),
    "an empty prefix of pieces": changed(BYTES, continuing_subword_prefix=""),
    "markup": byte_level_document(added_tokens=[added(261, "<tool_call>", special=False)]),
    "byte fallback": CHARACTERS,
    "no unknown token": changed(CHARACTERS, unk_token=None, fuse_unk=False),
    "no dummy prefix": character_document(normalizer=TAKES_SPACES),
    "Gemma's idle Split": character_document(
        normalizer=TAKES_SPACES, pre_tokenizer=GEMMA | {"invert": False}
    ),
    "Metaspace always": metaspace(),
    "Metaspace first": metaspace(prepend_scheme="first"),
    "Metaspace never": metaspace(prepend_scheme="never"),
    "Metaspace that splits idly": without_runs_of_spaces(metaspace(split=True)),
    "a template of BOS": character_document(post_processor=template("<s>", **{"<s>": [1]})),
}
"""Files that are read, with the ids of the library: by name, the content of tokenizer.json."""


@pytest.mark.parametrize("document", MODELLED.values(), ids=MODELLED)
def test_what_is_modelled_has_the_ids_of_the_library(
    document: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(as_json(document))
    ours: Tokenizer[Any] = read_tokenizer(path)
    theirs = library_tokenizer(path)
    markup = any(not token.special for token in theirs.get_added_tokens_decoder().values())

    @given(text=texts)
    @settings(max_examples=20)
    def agree(text: str) -> None:
        if ours.spec.by_characters and SPACE_MARK in text:
            return
        expected = theirs.encode(text, add_special_tokens=False).ids
        data = ours.text_bytes(text)
        assert ours.encode(text) == ours.bpe.encode(data) == expected
        assert ours.encode_batch([text, "tak"])[0] == expected
        growing = IncrementalEncoder(ours.bpe)
        for at in range(len(data)):
            growing.push(data[at : at + 1])
        assert growing.ids == expected

    agree()
    theirs.encode_special_tokens = False
    for special in ours.spec.specials.values():
        text = f"tak{special}kot {special} ok{special}"
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, specials=True) == expected
        assert markup or special not in ("<s>", "</s>") or ours.encode(text) != expected
    bos = ours.vocabulary.roles.bos
    begins = theirs.encode("tak").ids
    assert list(ours.spec.opening) == begins[: begins[:1] == [bos]]


def test_sound_files_of_the_other_kinds_are_read(tmp_path: Path) -> None:
    model, ranks, tekken = (tmp_path / name for name in ("tokenizer.model", "x.tiktoken", "t.json"))
    model.write_bytes(changed_model())
    ranks.write_text("\n".join(rank_lines()))
    tekken.write_bytes(as_json(tekken_document()))
    theirs = SentencePieceProcessor(model_file=str(model))
    ours: Tokenizer[Any] = read_tokenizer(model)
    of_ranks: Tokenizer[Any] = read_tokenizer(ranks, RANK_SUPPLEMENT)
    of_tekken: Tokenizer[Any] = read_tokenizer(tekken)
    for text in SENTENCES:
        assert ours.encode(text) == theirs.encode(text)
        assert [i + 3 for i in of_ranks.encode(text)] == of_tekken.encode(text)


CONFIGS = (b"[]", b'{"bos_token": ', b"[" * 100_000, b"")


@pytest.mark.parametrize("config", CONFIGS, ids=["list", "half", "deep", "empty"])
def test_a_broken_configuration_is_named(config: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(as_json(byte_level_document()))
    (tmp_path / "tokenizer_config.json").write_bytes(config)
    with pytest.raises(VocabularyError, match="tokenizer_config") as caught:
        read_tokenizer(tmp_path)
    assert "; " in str(caught.value)


def test_odd_spellings_in_the_configuration_are_as_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(as_json(byte_level_document()))
    odd = {"bos_token": 5, "eos_token": {"content": ["</s>"]}}
    (tmp_path / "tokenizer_config.json").write_bytes(as_json(odd))
    roles = read_tokenizer(tmp_path).vocabulary.roles
    assert roles.bos is None
    assert roles.eos == {261}


def test_no_path_in_a_file_is_followed(tmp_path: Path) -> None:
    """A FIFO would make any reader wait that opens it."""
    os.mkfifo(tmp_path / "trap")
    trap = str(tmp_path / "trap")
    keys = ("tokenizer_file", "vocab_file", "name_or_path", "chat_template", "auto_map")
    (tmp_path / "tokenizer.json").write_bytes(as_json(byte_level_document()))
    (tmp_path / "tokenizer_config.json").write_bytes(as_json(dict.fromkeys(keys, trap)))
    assert read_tokenizer(tmp_path).encode("kot") == [257]
    (tmp_path / "tokenizer.json").write_bytes(as_json(byte_level_document(vocab_file=trap)))
    with pytest.raises(VocabularyError, match="Cannot instantiate"):
        read_tokenizer(tmp_path)


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)


OBJECTS: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "nothing": (lambda path: None, MissingAssetError, "does not exist"),
    "a dangling link": (lambda at: at.symlink_to("nowhere"), MissingAssetError, "does not exist"),
    "a loop of links": (lambda path: path.symlink_to(path), VocabularyError, "cannot be read"),
    "a folder": (Path.mkdir, MissingAssetError, "holds no tokenizer"),
    "a FIFO": (os.mkfifo, VocabularyError, "a pipe or a device"),
    "a device": (lambda at: at.symlink_to("/dev/zero"), VocabularyError, "a pipe or a device"),
    "a sparse file beyond the limit": (large, VocabularyError, "more than 134,217,728 bytes"),
}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
@pytest.mark.parametrize(("make", "error", "reason"), OBJECTS.values(), ids=OBJECTS)
def test_what_is_no_file_is_refused(
    make: Callable[[Path], None], error: type[Exception], reason: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(error, match=reason) as caught:
        read_tokenizer(path)
    assert_clear(caught.value, path)


def test_in_a_folder_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    os.mkfifo(tmp_path / "tokenizer_config.json")
    (tmp_path / "tokenizer.model").write_bytes(changed_model())
    assert read_tokenizer(tmp_path).encode("kot")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for name, whole in (
        ("tokenizer.json", as_json(byte_level_document())),
        ("tekken.json", as_json(tekken_document())),
    ):
        path = tmp_path / name
        for cut in range(0, len(whole) - 1, 141):
            path.write_bytes(whole[:cut])
            with pytest.raises(VocabularyError) as caught:
                read_tokenizer(path)
            assert_clear(caught.value, path)


@pytest.mark.parametrize("files", [100, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("make", [byte_level_document, character_document])
def test_a_damaged_file_is_refused_or_read_as_the_library_reads_it(
    make: Callable[[], dict[str, Any]], files: int, tmp_path: Path
) -> None:
    whole, draw, read = as_json(make()), Random(9), 0
    path = tmp_path / "tokenizer.json"
    for _ in range(files):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.choice(b'09aZ"{}[],: \\u\xff')
        path.write_bytes(damaged)
        try:
            ours: Tokenizer[Any] = read_tokenizer(path)
        except VocabularyError as error:
            assert_clear(error, path)
            continue
        read += 1
        theirs = library_tokenizer(path)
        for text in SENTENCES:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert read > files // 50


def test_a_text_that_makes_an_expression_backtrack_is_an_error_and_no_panic(tmp_path: Path) -> None:
    """The check on load has no such text."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(as_json(byte_level_document(pre_tokenizer=split("(?:ta|tata)+k|."))))
    tokenizer: Tokenizer[Any] = read_tokenizer(path)
    assert tokenizer.encode("tatak") == library_tokenizer(path).encode("tatak").ids
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text, "tak"])):
        with pytest.raises(VocabularyError, match="gives up"):
            encode("ta" * 60 + "!")
