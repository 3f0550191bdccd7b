"""A pack of everything gives the dictionary that the corpus gives, less of it one less good."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import log2
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

import numpy as np
import pytest
from polish import SENTENCES
from processes import HUNG, wait_for
from small_families import write_family
from small_tokenizers import trained_tokenizer
from written_tables import write_bundle

from tokalign.api.choosing import choose_drafting
from tokalign.build import installed_packs
from tokalign.build.compile_pack import compile_pack, encode_words, positions_of
from tokalign.build.corpus import Corpus
from tokalign.build.counting import word_shards
from tokalign.build.counting.ngram_tree import grow_tree, smooth
from tokalign.build.counting.windows import TokenNgrams
from tokalign.build.counting.word_shards import words_of
from tokalign.build.dictionary.dictionary_bundle import BackoffOptions, build_dictionary
from tokalign.build.installed_packs import InstalledPacks, is_about_code, language_of_prompt
from tokalign.build.pack import _worth, build_pack
from tokalign.errors import BundleError, MissingAssetError, TokalignError, UsageError
from tokalign.locks import making
from tokalign.runtime.drafting import make_drafter
from tokalign.runtime.options import DraftingOptions
from tokalign.storage import TABLES, sample_text, shipped
from tokalign.tables.backoff import BackoffTable
from tokalign.tables.bundle import Bundle, decode_bundle, encode_bundle, read_header
from tokalign.tables.dictionary import Dictionaries
from tokalign.tables.finding import compiled_folder
from tokalign.tables.opening import verify_table
from tokalign.tables.pack import COUNTS, Pack, WordNgrams
from tokalign.tokenizer.self_check import read_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

OPTIONS = BackoffOptions(max_bytes=20_000)
EVERYTHING = BackoffOptions(max_bytes=1_000_000, min_count=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Lines of at most six words, so that no n-gram is longer than those of a pack."""
    random, lines = Random(7), []
    for text in [*SENTENCES, *sample_text("pl").read_text("utf-8").splitlines()[:40]]:
        words = words_of([text.replace("\n", " ")])
        for at in range(0, len(words), 5):
            line = "".join(words[at : at + random.randint(2, 6)]).strip()
            lines += [line] * random.randint(1, 4) if len(words_of([line])) <= 6 else []
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Corpus([path])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer[Any]:
    return trained_tokenizer(400)


@pytest.fixture(scope="module")
def packed(corpus: Corpus) -> Bundle:
    return build_pack(corpus, EVERYTHING, language="pl")


def test_words_are_cut_where_no_token_reaches_across() -> None:
    assert words_of(["Ala ma kota, a (kot)…", "– To 12.5 zł."]) == [
        *("\nAla", " ma", " kota", ",", " a", " (", "kot", ")…"),
        *("\n–", " To", " 12", ".5", " zł", "."),
    ]
    assert words_of(["if (x):\n    f(a.b)\n\treturn don't"]) == [
        *("\nif", " (", "x", "):\n   ", " f", "(a", ".b", ")\n", "\treturn", " don't"),
    ]


CODE = (
    "def __init__(self, x):\n    self.x = x['key']  # don't\n\n    return f(a[0])\n",
    '};\n\n  a = [1, 22];\n\t\tfoo->bar("x", self.__class__.__name__);\n',
    '{\n  "a": 1,\n  "b_c": [true, null]\n}\n',
    "1. **Bold**: x\n\n- y, e.g. `z`\n\n```sh\nls | wc -l && echo $HOME\n```\n",
)


@pytest.mark.parametrize(
    "family", ["SmolLM2", "Kimi K2", "GPT-4o as converted", "DeepSeek V3", "WordPiece"]
)
def test_a_text_is_encoded_as_its_words_are(family: str, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_family(tmp_path, family))
    for text in CODE:
        words = words_of([text])
        assert "".join(words) == f"\n{text}"
        encoded = encode_words(tokenizer, words)
        assert encoded.ids.tolist() == tokenizer.encode(text)


def test_words_inside_a_text_are_normalized_as_texts_are(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_family(tmp_path, "NFKC over bytes"))
    ids = encode_words(tokenizer, words_of(["a ﬁsh… x²y"])).ids.tolist()
    assert ids == tokenizer.encode("a ﬁsh… x²y")


@pytest.mark.parametrize("family", ["Unigram", "WordPiece"])
def test_what_a_line_end_is_encoded_with_is_left_out(family: str, tmp_path: Path) -> None:
    """Also where a line end is no token, or where nothing is known of the bytes of tokens."""
    tokenizer, words = read_tokenizer(write_family(tmp_path, family)), ["\n", ";\n"]
    alone = [token for ids in tokenizer.encode_parts(words) for token in ids]
    assert encode_words(tokenizer, words).ids.tolist() == alone


def test_a_pack_of_everything_gives_the_native_dictionary(
    corpus: Corpus, tokenizer: Tokenizer[Any], packed: Bundle
) -> None:
    native = build_dictionary(tokenizer, corpus, OPTIONS, language="pl")
    compiled = compile_pack(tokenizer, packed, OPTIONS)
    counted = {name: n for name, n in native.statistics.items() if name.startswith("ngrams")}
    assert counted["ngrams_of_9"] > 100
    assert {name: compiled.statistics[name] for name in counted} == counted
    # The same contexts are stored; their probabilities come from rounded counts.
    fingerprints = "backoff.fingerprints"
    assert compiled.sections[fingerprints] == native.sections[fingerprints]
    assert compiled.corpus == corpus.stamp


def test_less_of_it_fits_into_fewer_bytes(
    corpus: Corpus, tokenizer: Tokenizer[Any], packed: Bundle
) -> None:
    size = len(encode_bundle(packed))
    less = build_pack(corpus, replace(EVERYTHING, max_bytes=size * 2 // 3), language="pl")
    assert size // 2 < len(encode_bundle(less)) <= size * 2 // 3
    made = compile_pack(tokenizer, less, OPTIONS)
    assert made.statistics["ngrams_of_3"] > 0


@pytest.mark.parametrize(("text", "most"), [("Ala ma kota", 100), ("あ" * 99, 10_000)])
def test_a_corpus_of_which_no_word_is_kept_is_an_error(
    text: str, most: int, tmp_path: Path
) -> None:
    """For want of bytes, or as a pack has no words as long as those of Japanese without signs."""
    corpus, options = Corpus([written(tmp_path, text)]), replace(EVERYTHING, max_bytes=most)
    with pytest.raises(UsageError, match="hold no pack of this corpus"):
        build_pack(corpus, options, language="yy")


def test_what_is_kept_does_not_depend_on_how_a_processor_computes_logarithms() -> None:
    counts = np.random.default_rng(5).integers(1, 1000, (100, 100))
    ids = np.indices(counts.shape, dtype=np.uint16).reshape(2, -1).T
    one = TokenNgrams(ids[::100, :1], counts.sum(axis=1))
    levels = grow_tree([one, TokenNgrams(ids, counts.ravel())])
    (single, pairs), _ = smooth(levels)
    surer = [log2(times) for times in (pairs / single[levels[1].suffix]).tolist()]
    expected = (levels[1].counts - 0.5) * np.array(surer, dtype=np.float32) / np.float32(15)
    assert _worth(levels)[1].tolist() == expected.tolist()


def test_equal_corpora_give_equal_bytes(corpus: Corpus, packed: Bundle) -> None:
    again = build_pack(corpus, EVERYTHING, language="pl")
    assert encode_bundle(again) == encode_bundle(packed)
    read = Pack.from_bundle(decode_bundle(encode_bundle(packed)))
    assert read.to_sections() == dict(packed.sections)


def test_a_forged_pack_is_refused_or_compiled(
    tokenizer: Tokenizer[Any], packed: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # a process takes a second to start
    random, refused = Random(5), 0
    for name, section in packed.sections.items():
        data = bytes(section)
        for forged in (data[:-1], _garbled(data, random)):
            sections = {**packed.sections, name: forged}
            try:
                compile_pack(tokenizer, replace(packed, sections=sections), OPTIONS)
            except TokalignError:
                refused += 1
    assert refused > len(packed.sections) // 2
    without: Mapping[str, Any] = {k: v for k, v in packed.sections.items() if k != "3.gaps"}
    with pytest.raises(BundleError, match="gaps"):
        Pack.from_bundle(replace(packed, sections=without))


def _garbled(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(3):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def test_a_pack_of_long_words_fills_neither_memory_nor_disk(
    tokenizer: Tokenizer[Any], packed: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word of 64 characters may be 256 ids, and as many windows begin in it."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    expected = encode_bundle(compile_pack(tokenizer, packed, OPTIONS))
    monkeypatch.setattr("tokalign.build.compile_pack._MOST_IDS", 2_000)
    assert encode_bundle(compile_pack(tokenizer, packed, OPTIONS)) == expected
    monkeypatch.setattr("tokalign.build.compile_pack._MOST_WINDOWS", 200)
    with pytest.raises(BundleError, match="ids of this tokenizer"):
        compile_pack(tokenizer, packed, OPTIONS)


@pytest.fixture
def tables(packed: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table folder with a pack of the language yy, and a user of another one."""
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    write_pack(packed, tmp_path, "yy")
    return tmp_path


def write_pack(pack: Bundle, folder: Path, language: str) -> None:
    named = replace(pack, parameters={**pack.parameters, "language": language})
    write_bundle(folder / f"{language}.pack.tok", named)


def test_a_pack_is_compiled_once_for_a_tokenizer(
    tokenizer: Tokenizer[Any], packed: Bundle, tables: Path
) -> None:
    write_pack(packed, tables, "zz")
    told: list[str] = []
    options = DraftingOptions(method="dictionary", language="yy,zz")
    assert choose_drafting(tokenizer, None, options, note=told.append).dictionary
    assert sum("now, once" in line for line in told) == 2
    assert sum(line.startswith("dictionary ->") for line in told) == 2
    told.clear()
    # Now it is there, for who names no language too; without it, nothing would be compiled.
    asks_for_none = DraftingOptions(method="dictionary")
    assert choose_drafting(tokenizer, None, asks_for_none, note=told.append).dictionary
    assert not any("now, once" in line for line in told)
    # A later tokalign has another pack.
    newer = replace(packed, corpus={"files": [{"name": "newer.txt"}]})
    write_pack(newer, tables, "yy")
    [made] = tables.glob("*/yy.dictionary.tok")
    os.utime(made, (0, 0))
    assert choose_drafting(tokenizer, None, options, note=told.append).dictionary
    assert sum("now, once" in line for line in told) == 1
    assert read_header(made).corpus == newer.corpus
    assert not [*tables.rglob("*.previous")]


def test_a_pack_that_another_process_compiles_is_waited_for(
    tokenizer: Tokenizer[Any], packed: Bundle, tables: Path
) -> None:
    """A server that is started at the same time would go without it for its whole life."""
    told: list[str] = []
    packs = InstalledPacks(tokenizer, lambda: None, note=told.append)
    second = Thread(target=packs.compile, args=(["yy"],))
    made = compiled_folder(tokenizer.fingerprint) / "yy.dictionary.tok"
    with making(made, "compiling"):
        second.start()
        wait_for(lambda: len(told) > 1 or not second.is_alive())
        first = replace(
            packed,
            kind="dictionary",
            fingerprints={"target": tokenizer.fingerprint},
            parameters={"language": "yy"},
            sections={},
        )
        write_bundle(made, first)
    second.join()
    begun, waits = told
    assert "now, once" in begun
    assert waits.endswith(f" is compiling {made}, which is waited for")
    assert made.read_bytes() == encode_bundle(first)


def test_who_waits_for_a_pack_ends_with_the_process_that_asked(
    tokenizer: Tokenizer[Any], tables: Path
) -> None:
    made = compiled_folder(tokenizer.fingerprint) / "yy.dictionary.tok"
    words = map(str, (tables / "yy.pack.tok", made))
    command = [sys.executable, "-P", "-m", installed_packs.__name__, *words]
    with making(made, "compiling"), Popen(command, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps(tokenizer))
        process.stdin.flush()
        assert b"waited for" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(HUNG) == 128 + signal.SIGTERM


@pytest.mark.parametrize("background", [False, True])
def test_the_prompt_says_which_pack_is_compiled(
    tokenizer: Tokenizer[Any], tables: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    monkeypatch.setenv("TOKALIGN_PACKS", "")
    monkeypatch.setattr("tokalign.tables.finding.shipped", lambda _: tables / "none")
    told: list[str] = []
    options = DraftingOptions(method="dictionary")
    drafting = choose_drafting(tokenizer, None, options, background=background, note=told.append)
    english, polish = (tokenizer.encode(text) for text in ("Only English words", SENTENCES[0]))
    assert drafting.for_prompt(english).dictionary is None
    with pytest.raises(MissingAssetError, match="no dictionary fits"):
        make_drafter(drafting.for_prompt(english))
    found = drafting.for_prompt(polish).dictionary
    if background:
        assert found is None
        wait_for(lambda: drafting.for_prompt(polish).dictionary is not None)
        found = drafting.for_prompt(polish).dictionary
    assert found
    assert drafting.for_prompt(english).dictionary is found
    assert sum("now, once" in line for line in told) == 1
    assert any("Counting token n-grams" in line for line in told)
    assert not [line for line in told if "not used" in line or "Fatal" in line]


def test_a_prompt_about_code_also_compiles_what_chat_models_write(
    tokenizer: Tokenizer[Any], packed: Bundle, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKALIGN_PACKS", "")
    monkeypatch.setattr("tokalign.tables.finding.shipped", lambda _: tables / "none")
    for language in ("code", "chat"):
        write_pack(packed, tables, language)
    drafting = choose_drafting(tokenizer, None, DraftingOptions(method="dictionary"))
    assert drafting.for_prompt(tokenizer.encode("12 + 30 = ?")).dictionary is None
    found = drafting.for_prompt(tokenizer.encode("Python?")).dictionary
    assert isinstance(found, Dictionaries)
    assert found.by_source.keys() == {"dictionary:code", "dictionary:chat"}


def test_where_nothing_can_be_kept_one_note_says_so(
    tokenizer: Tokenizer[Any], packed: Bundle, tables: Path
) -> None:
    write_pack(packed, tables, "zz")
    (tables / tokenizer.fingerprint[:16]).write_text("where a folder would be made")
    told: list[str] = []
    packs = InstalledPacks(tokenizer, lambda: None, note=told.append)
    packs.compile(["yy", "zz"])
    packs.compile(["zz"])
    assert not packs.can_grow
    (line,) = told
    assert "cannot be written" in line
    assert line.endswith("set TOKALIGN_TABLES to a folder that you may write to")


def test_for_a_tokenizer_that_no_other_process_knows_one_note_says_so(
    tokenizer: Tokenizer[Any], packed: Bundle, tables: Path
) -> None:
    class Local(Tokenizer[Any]):
        pass

    write_pack(packed, tables, "zz")
    told: list[str] = []
    InstalledPacks(Local(tokenizer.spec), lambda: None, note=told.append).compile(["zz"])
    (line,) = told
    assert "another process cannot have the tokenizer, whose class has to be in a module (" in line
    assert "Local" in line


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Czym różni się rower miejski od górskiego?", "pl"),
        ("Napiš krátký dopis sousedovi a popros ho, aby zalil květiny.", "cs"),
        ("Чому взимку дні коротші, ніж улітку?", "uk"),
        ("Write a Python function that merges two sorted lists.", "en"),
        ("Parašyk trumpą laišką kaimynui.", None),
        ("12 + 30 = ?", None),
    ],
)
def test_the_language_of_a_prompt(
    text: str, language: str | None, tokenizer: Tokenizer[Any]
) -> None:
    packs = {path.name.partition(".")[0]: path for path in shipped(TABLES).glob("*.pack.tok")}
    ids = tokenizer.encode(text)
    assert language_of_prompt(tokenizer, ids, packs) == language
    # The user's message decides, not the system's, nor the names of roles.
    special = next(iter(tokenizer.vocabulary.specials))
    system, role = map(tokenizer.encode, ("You are a helpful assistant.", "assistant\n"))
    chat = [special, *system, special, *ids, special, *role]
    assert language_of_prompt(tokenizer, chat, packs) == (language or "en")


def test_a_short_message_is_not_english_by_the_name_of_its_role(tokenizer: Tokenizer[Any]) -> None:
    packs = {path.name.partition(".")[0]: path for path in shipped(TABLES).glob("*.pack.tok")}
    special = next(iter(tokenizer.vocabulary.specials))
    chat = [special, *tokenizer.encode("user\nA teraz?"), special, *tokenizer.encode("assistant\n")]
    assert language_of_prompt(tokenizer, chat, packs) == "pl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write a poem about swift rivers and their rust-red stones.", False),
        ("Napisz w Pythonie funkcję, która liczy słowa.", True),
        ("Why is this slow?\n```\nSELECT * FROM a\n```", True),
    ],
)
def test_code_is_wanted_where_a_prompt_is_about_it(
    text: str, expected: bool, tokenizer: Tokenizer[Any]
) -> None:
    assert is_about_code(tokenizer, tokenizer.encode(text)) == expected


@pytest.mark.slow
def test_the_shipped_packs_can_be_read() -> None:
    found = {path.name.split(".")[0]: path for path in shipped(TABLES).glob("*.pack.tok")}
    assert found.keys() == {"chat", "code", "crh", "cs", "en", "pl", "uk"}
    for language, path in found.items():
        verify_table(path)
        assert read_header(path).language == language


def test_the_first_word_of_a_line_has_the_space_that_the_tokenizer_puts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    prefixing = read_tokenizer(write_family(tmp_path, "Metaspace"))
    assert prefixing.spec.dummy_prefix
    lines = Corpus([written(tmp_path, *["Ala ma kota"] * 5, *["potem Ala"] * 4)])
    made = compile_pack(prefixing, build_pack(lines, EVERYTHING, language="pl"), EVERYTHING)
    native = build_dictionary(prefixing, lines, EVERYTHING, language="pl")
    counted = {name: n for name, n in native.statistics.items() if name.startswith("ngrams")}
    assert {name: made.statistics[name] for name in counted} == counted
    tables = [BackoffTable.from_bundle(one) for one in (made, native)]
    for text in ("Ala", "potem"):
        ids = prefixing.encode(text)
        for known in range(1, len(ids)):
            one, other = (table.predict(ids[:known]) for table in tables)
            assert one
            assert other
            assert one[0] == other[0] == ids[known]


def written(folder: Path, *lines: str) -> Path:
    (folder / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder / "a.txt"


def test_of_equally_frequent_words_the_first_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_shards, "MAX_WORDS", 3)
    word_shards.write_words(tmp_path / "a", ["c b a d", "c", "d e"], 1000)
    assert word_shards.find_words([tmp_path / "a"]) == ["\nc", "\nd", " a"]


def test_every_position_is_counted_once_by_its_longest_ngram() -> None:
    """Rounded counts are raised until no suffix or prefix is rarer than what it is a part of."""
    none = np.zeros(3, dtype=np.int64)
    words = WordNgrams(prefix=none, suffix=none, last=np.arange(3), levels=np.array([4, 2, 0]))
    prefix, suffix, levels = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([2, 3, 2])
    pairs = WordNgrams(prefix=prefix, suffix=suffix, last=suffix, levels=levels)
    counts = COUNTS[words.levels]
    after, before = np.zeros(3), np.zeros(3)
    np.add.at(after, prefix, COUNTS[levels])
    np.add.at(before, suffix, COUNTS[levels])
    raised = np.maximum(counts, np.maximum(after, before))
    assert (raised > counts).sum() == 2
    first, last = positions_of(Pack(("a", "b", "c"), (words, pairs)))
    assert first.tolist() == (raised - after).tolist()
    assert last.tolist() == COUNTS[levels].tolist()
