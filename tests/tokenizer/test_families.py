"""Every family of tokenizers: encoded as its library does, at every split, and lossless.

Small tokenizers with each published pipeline are trained here. Real files are read where
`$TOKALIGN_REAL_MODELS` names a folder that has them in `tokenizers/`.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from places import DEMO
from random_models import emitted, random_model
from small_families import BY_TEXT, FAMILIES, IDS_ONLY, TEXTS, write_family
from tokenizer_files import library_tokenizer

from tokalign.api.assemble import assemble
from tokalign.api.objects import as_tokenizer
from tokalign.errors import IncompatibleError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation, TextStream
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.request import Request
from tokalign.runtime.translation.committed_text import Boundary, DraftText
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.spec import Level
from tokalign.tokenizer.tokenizer import Tokenizer

REAL = Path(os.environ.get("TOKALIGN_REAL_MODELS", "/nowhere"), "tokenizers")
PARTS = (
    *("Zażółć", " gęślą", "jaźń", " the", " quick", "it's", "I'M", "x_1", "def f(a):", "\treturn"),
    *(" ", "  ", "     ", "\n", "\n\n", "\n\n\n\n\n", "\t\t\t", "\r\n", " \n ", "\u00a0", "\u2003"),
    *("0", "12", "1234567", "3.14", "２", "²", "中文", "北京2024", "カナ", "مرحبا", "١٢", "한국"),
    *("🐟", "👍🏽", "e\u0301", "ﬁ", "ß", "...", "!?", "--", "/", "</b>", "<b>", "a\x04b", "\x1d"),
    *("= ==", "{}", "A B", "AaAa", "ABc", "'s", "’s", "ſ", "\u200b", "\ufeff", "q" * 40),
)


def texts(count: int, seed: int = 1) -> list[str]:
    """Texts of every kind, put together at random."""
    draw = Random(seed)
    made = ["".join(draw.choices(PARTS, k=draw.randint(1, 9))) for _ in range(count - len(TEXTS))]
    return [*TEXTS, *made]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family's folder and tokenizer."""

    @cache
    def by_name(name: str) -> tuple[Path, Tokenizer[Any]]:
        folder = write_family(tmp_path_factory.mktemp("family"), name)
        return folder, read_tokenizer(folder)

    return by_name


def agree(tokenizer: Tokenizer[Any], file: Path, count: int) -> None:
    """On so many texts: the library's ids, and those of the encoder that decoding uses."""
    library = library_tokenizer(file)
    some = texts(count)
    expected = [library.encode(text, add_special_tokens=False).ids for text in some]
    assert tokenizer.encode_batch(some) == expected
    if tokenizer.level is not Level.IDS_ONLY:
        encode = tokenizer.encoder.encode
        assert [encode(tokenizer.text_bytes(text)) for text in some] == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_the_level_is_the_highest_that_is_right(read: Any, name: str) -> None:
    _, tokenizer = read(name)
    lower = dict.fromkeys(BY_TEXT, Level.BY_TEXT) | dict.fromkeys(IDS_ONLY, Level.IDS_ONLY)
    assert tokenizer.level is lower.get(name, Level.ALIGNED)
    assert bool(tokenizer.spec.why) == (name in lower)


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FAMILIES)
def test_texts_are_encoded_as_the_library_encodes_them(read: Any, name: str, count: int) -> None:
    folder, tokenizer = read(name)
    agree(tokenizer, folder / "tokenizer.json", count)


WITH_BYTES = [name for name in FAMILIES if name not in IDS_ONLY]


@pytest.mark.parametrize("name", WITH_BYTES)
def test_a_text_that_grows_is_encoded_as_the_whole_at_every_split(read: Any, name: str) -> None:
    _, tokenizer = read(name)
    encoder, draw = tokenizer.encoder, Random(3)
    whole = [tokenizer.text_bytes(text)[:160] for text in texts(30, seed=2)]
    broken = (b"\xc5", b"\xbc", b"\xff", b" a", b"\n")
    for data in (*whole, *[b"".join(draw.choices(broken, k=6)) for _ in range(100)]):
        growing = IncrementalEncoder(encoder)
        for end in range(1, len(data) + 1):
            growing.push(data[end - 1 : end])
            assert growing.ids == encoder.encode(data[:end])
        for cut in range(0, len(data), 7):
            two = IncrementalEncoder(encoder)
            two.push(data[:cut])
            settled = two.ids[: two.settled]
            two.push(data[cut:])
            assert two.ids == growing.ids
            assert two.ids[: len(settled)] == settled


@pytest.mark.parametrize("name", WITH_BYTES)
def test_the_boundary_never_contradicts_the_library(read: Any, name: str) -> None:
    """What follows committed ids in the encoding of the whole text is what the boundary says."""
    _, tokenizer = read(name)
    encoder, tokens = tokenizer.encoder, tokenizer.vocabulary.tokens
    for text in texts(20, seed=4):
        ids = [token for token in tokenizer.encode(text) if tokens[token]]
        for cut in range(1, len(ids)):
            before, after = (b"".join([tokens[i] for i in part]) for part in (ids[:cut], ids[cut:]))
            if encoder.encode(before) != ids[:cut] or encoder.encode(before + after) != ids:
                continue  # not canonical up to here, or a character is lost
            boundary = Boundary(tokenizer)
            boundary.follow(ids[:cut])
            assert boundary.encode(after) == tuple(ids[cut:])
            assert not boundary.absorbs(after)


def model_of(tokenizer: Tokenizer[Any], seed: int) -> LanguageModel[Any]:
    size = len(tokenizer.vocabulary)
    return LanguageModel(model=random_model(seed, vocabulary=size), tokenizer=tokenizer)


def emit(target: LanguageModel[Any], draft: LanguageModel[Any] | None, **options: Any) -> list[int]:
    sampling = Sampling(temperature=0.8, seed=3)
    decoder = assemble(target, draft, DraftingOptions(**options))
    prompt = decoder.prompt("Zażółć 12\n\n a")
    return emitted(Generation(decoder, Request(prompt, max_tokens=24, sampler=sampling)))


METHODS: list[dict[str, Any]] = [
    {},
    {"method": "copy"},
    {"method": "draft", "num_draft_tokens": 2},
    {"method": "draft", "num_draft_tokens": 2, "alternatives": 0},
    {"method": "draft", "num_draft_tokens": 2, "translation": "intersection"},
    {"method": "draft", "num_draft_tokens": 2, "translation": "context:5"},
]


REPRESENTATIVES = {"SmolLM2, bytes missing", "Llama 2", "Unigram", "WordPiece"}
"""Tokens over bytes and over characters; tokenizers that are used by their text and by ids."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in REPRESENTATIVES else pytest.mark.long)
        for name in FAMILIES
    ],
)
def test_every_method_is_lossless_with_the_family_on_either_side(read: Any, name: str) -> None:
    _, tokenizer = read(name)
    other: Tokenizer[Any] = read_tokenizer(DEMO / "draft")
    family, demo = model_of(tokenizer, 1), model_of(other, 2)
    for target, draft in ((family, demo), (demo, family)):
        plain = emit(target, None, method="plain")
        assert len(plain) == 24
        for options in METHODS:
            if name in IDS_ONLY and options.get("method") == "draft":
                with pytest.raises(IncompatibleError, match="dictionaries, context copy"):
                    emit(target, draft, **options)
            else:
                assert emit(target, draft, **options) == plain


@pytest.mark.parametrize("name", sorted(IDS_ONLY))
def test_text_of_ids_alone_is_what_the_library_writes(read: Any, name: str) -> None:
    folder, tokenizer = read(name)
    library = library_tokenizer(folder / "tokenizer.json")
    for text in TEXTS:
        ids = tokenizer.encode(text)
        stream = TextStream(tokenizer)
        assert "".join(map(stream.push, ids)) + stream.finish() == library.decode(ids)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs $TOKALIGN_REAL_MODELS")
@pytest.mark.parametrize("folder", sorted(REAL.iterdir()) if REAL.is_dir() else [])
def test_real_files_are_aligned(folder: Path) -> None:
    assert read_tokenizer(folder).level is Level.ALIGNED
    # For a folder mlx-lm's tokenizer counts, whose class may do something else than the file says.
    tokenizer: Tokenizer[Any] = read_tokenizer(folder / "tokenizer.json")
    agree(tokenizer, folder / "tokenizer.json", 2000)
    for text in texts(20, seed=5):
        data = tokenizer.text_bytes(text)[:120]
        growing = IncrementalEncoder(tokenizer.encoder)
        for byte in data:
            growing.push(bytes([byte]))
        assert growing.ids == tokenizer.encoder.encode(data)


def test_text_that_a_target_cannot_spell_ends_a_proposal_before_it(read: Any) -> None:
    """SmolLM2 has no token for the byte 04, nor for the byte F1 and the characters it begins."""
    _, tokenizer = read("SmolLM2, bytes missing")
    assert {0x04, 0xF1} <= tokenizer.encoder.missing
    boundary = Boundary(tokenizer)
    boundary.follow(tokenizer.encode("kot"))
    whole = tokenizer.encoder.encode(b"kot ma")
    assert boundary.encode(b" ma\x04 psa") == tuple(whole[len(tokenizer.encode("kot")) :])
    assert boundary.encode(b"\x04 psa") == ()
    assert not boundary.absorbs(b"\x04")
    assert tokenizer.encode("kot\x04\x04y") == tokenizer.encode("kot\x04y")


@pytest.mark.parametrize("run", ["1", "ab", " ", "\n"])
def test_the_work_of_a_token_does_not_grow_with_a_run(read: Any, run: str) -> None:
    """Digits are cut one by one, so that nearly all are settled; the others are merged as one piece
    to which each token adds its own end, although some bytes have no token."""
    _, tokenizer = read("SmolLM2, bytes missing")
    encoder, merge = IncrementalEncoder(tokenizer.encoder), tokenizer.bpe.merges.apply
    encoder.push(f"a {run * 900}".encode())
    merged = [0]

    def apply(_: Any, symbols: list[Any]) -> Any:
        merged.append(len(symbols))
        return merge(symbols)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tokenizer.bpe.merges), "apply", apply)
        for _ in range(40):
            encoder.push(run.encode())
    assert encoder.ids == tokenizer.encoder.encode(encoder.text)
    assert max(merged) < 500
    assert run != "1" or encoder.settled > len(encoder.ids) - 3


def test_a_draft_that_cannot_spell_a_byte_reads_the_text_without_it(read: Any) -> None:
    _, draft = read("SmolLM2, bytes missing")
    target: Tokenizer[Any] = read_tokenizer(DEMO / "target")
    view = DraftText(target, draft)
    ids = target.encode("Ala\x04 ma kota\x1d")
    for end in range(1, len(ids) + 1):
        view.follow(ids[:end])
    assert view.ids == draft.encode("Ala\x04 ma kota\x1d")
    assert draft.vocabulary.bytes_of(view.ids) == b"Ala ma kota"


class Words:
    """A tokenizer that is a program: an id for each word, in the order in which they come."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def __len__(self) -> int:
        return 96

    def encode(self, text: str) -> list[int]:
        words = text.split()
        self._words += [word for word in dict.fromkeys(words) if word not in self._words]
        return [self._words.index(word) for word in words]

    def decode(self, ids: list[int]) -> str:
        known = dict(enumerate(self._words))
        return " ".join(known.get(i, f"w{i}") for i in ids)


def test_whatever_encodes_and_decodes_is_used_by_its_ids() -> None:
    tokenizer = as_tokenizer(Words())
    assert tokenizer.level is Level.IDS_ONLY
    assert "Words" in tokenizer.describe()
    assert as_tokenizer(Words()).fingerprint == tokenizer.fingerprint
    target = model_of(tokenizer, 1)
    plain = emit(target, None, method="plain")
    assert emit(target, None) == emit(target, None, method="copy") == plain
    stream = TextStream(tokenizer)
    text = "".join(map(stream.push, plain)) + stream.finish()
    assert text == tokenizer.decode(plain)


def test_a_run_of_bytes_is_streamed_where_only_the_library_decodes(tmp_path: Path) -> None:
    """Its decoder gives up a whole run of bytes that begins inside a character."""
    spellings = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc"]
    model = {"type": "BPE", "vocab": {s: i for i, s in enumerate(spellings)}, "merges": []}
    document = {
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {**model, "byte_fallback": True, "unk_token": "<unk>"},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    }
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document))
    tokenizer: Tokenizer[Any] = read_tokenizer(file)
    assert tokenizer.level is Level.IDS_ONLY
    for text in ("👩‍👩‍👧‍👦🐟ab漢字c漢字漢字漢字漢字", "żółw" * 9, "aé" * 9 + "👍🏽" * 9):
        ids = tokenizer.encode(text)
        for start in range(len(ids)):
            if (before := tokenizer.decode(ids[:start])) in text:
                stream = TextStream(tokenizer, prompt=ids[:start])
                assert before + "".join(map(stream.push, ids[start:])) + stream.finish() == text


def test_a_folder_whose_tokenizer_is_no_file_is_loaded_by_transformers(tmp_path: Path) -> None:
    """ByT5's tokenizer is a program: three special ids, then the bytes."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.level is Level.IDS_ONLY
    assert tokenizer.decode(tokenizer.encode("żółw")) == "żółw"
