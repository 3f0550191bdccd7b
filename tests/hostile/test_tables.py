"""Table files of strangers: right checksums, wrong content. None is used, and each is told of.

Every attack is one case. A table that breaks a rule is a BundleError of one line, with the file's
name and the remedy, when it is verified or named; where it is found, a note says so and the run
goes on without it. `test_decoded_tables.py` attacks with tables that break no rule.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from click.testing import CliRunner
from forged_tables import (
    Packed,
    alignment_bundle,
    backoff_bundle,
    forge_file,
    logits_bundle,
    pack_pairs,
    split_file,
)
from processes import nobody
from small_tokenizers import of_merges

from tokalign.build.alignment import align
from tokalign.cli.sharing import push_tables
from tokalign.cli.tables import show_table, verify
from tokalign.errors import BundleError, MissingAssetError, TokalignError
from tokalign.tables.bundle import Bundle, encode_bundle, read_header
from tokalign.tables.dictionary import Dictionaries
from tokalign.tables.opening import open_alignment, open_dictionary, open_logit_rows, verify_table

TARGET = of_merges(b"abc", [(b"a", b"b"), (b"ab", b"c")])
DRAFT = of_merges(b"abc", [(b"b", b"c")])
KINDS = {"backoff": "dictionary", "alignment": "alignment", "logits": "logits"}


@cache
def sound(kind: str) -> Bundle:
    """A table without fault, small enough that one changed value matters."""
    if kind == "alignment":
        return alignment_bundle(DRAFT, TARGET, {1: [b"a", b"bc"], 3: [b"c"]})
    if kind == "backoff":
        return backoff_bundle(TARGET, {i: ((i + 1) % 5, 0.5) for i in range(5)})
    return logits_bundle(TARGET, {(0,): [1, 2], (4, 1): [3], (2, 0, 4): [4, 0, 1]})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which tables are looked for, and which is empty."""
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path / "tables"))
    monkeypatch.setattr("tokalign.tables.finding.user_data_path", lambda *_, **__: tmp_path / "no")
    (tmp_path / "tables").mkdir()
    return tmp_path / "tables"


def name_of(kind: str) -> str:
    return f"forged.{KINDS[kind]}.tok"


def use(kind: str, *, file: str | Path | None = None, **how: Any) -> object:
    """Open the table of a kind as a run does, which finds logits and is never told of them."""
    if KINDS[kind] == "logits":
        assert file is None
        return open_logit_rows(TARGET, **how)
    if KINDS[kind] == "alignment":
        return open_alignment(TARGET, DRAFT, otherwise=align, file=file, **how)
    return open_dictionary(TARGET, files=[] if file is None else [file], **how)


def push(path: Path) -> None:
    """Send a table to a repository, which is a folder."""
    place = path.parent.parent / "repository"
    place.mkdir(exist_ok=True)
    push_tables([path], str(place))


def assert_not_pushed(path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        push(path)
    assert_one_line(str(caught.value), path)


def assert_one_line(text: str, path: Path) -> None:
    assert text.isprintable()
    assert path.name in text
    assert "tokalign build" in text or ".tok file" in text


def assert_refused(
    path: Path, kind: str, error: type[TokalignError] = BundleError, *, verified: bool = True
) -> None:
    """Verified or named it is an error, found it is passed over with a note.

    verified: whether `verify`, which knows no tokenizers, can tell.
    """
    refusing: list[Callable[[Path], object]] = [verify_table] * verified
    if kind != "logits":
        refusing.append(lambda file: use(kind, file=file))
    for refuses in refusing:
        with pytest.raises(error) as caught:
            refuses(path)
        assert_one_line(str(caught.value), path)
    code = CliRunner().invoke(verify, [str(path)]).exit_code
    assert code == (error.exit_code if verified else 0)
    notes: list[str] = []
    found = use(kind, note=notes.append)
    assert len(notes) == (1 if found is None else 2)
    assert notes[0].endswith("; it is not used")
    assert_one_line(notes[0], path)
    assert found is None or "computed now" in notes[1]


# -- headers ---------------------------------------------------------------------------------------

MISSING = object()
FILE = {"name": "a.txt", "bytes": 3, "lines": 1}
HEX = "0f" * 32
EXTENSION, TIMESTAMP = msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1)
NAN, INFINITY = float("nan"), float("inf")
DEEP: Any = [[[[[[]]]]]]

VALUES: dict[str, list[Any]] = {
    "kind": [5, None, True, b"dictionary", "", "dictionary ", "x" * 65, "słownik", ["dictionary"]],
    "fingerprints": [
        *(5, None, [], {}, {"draft": HEX}, {"target": HEX, "draft": HEX}, {b"target": HEX}),
        *({"target": bad} for bad in (5, None, "", "0f" * 31, "0F" * 32, "zz" * 32, HEX + "\n")),
    ],
    "corpus": [
        *(None, [], {"texts": []}, {"files": {}}, {"files": None}, {"files": [5]}, {b"files": []}),
        *({"files": [FILE | {"weight": bad}]} for bad in (NAN, INFINITY, "1", True, None)),
        *({"files": [FILE | {"bytes": bad}]} for bad in ("3", 3.5, True, [])),
        *({"files": [FILE | bad]} for bad in ({"name": 5}, {"sha256": b""}, {"x": DEEP})),
    ],
    "parameters": [
        *(None, [], "p_min", 5),
        *({"p_min": bad} for bad in (NAN, INFINITY, -INFINITY, b"", EXTENSION, TIMESTAMP, DEEP)),
        *(
            {"language": bad}
            for bad in ("x" * 4097, "pl\nuk", "\x1b[2J", "", "../pl", "/tmp/pl", ".", 5, ["pl"])
        ),
        *({b"p_min": 0.5}, {"a": {"b": {"c": {"d": {"e": 1}}}}}),
    ],
    "statistics": [None, [], 7, {"entries": NAN}, {"entries": EXTENSION}, {"entries": DEEP}],
    "sections": [
        *(None, [], "a", {"": 1}, {"a b": 1}, {"a\n": 1}, {"ą": 1}, {"x" * 65: 1}, {b"a": 1}),
        *({"a": bad} for bad in (None, {}, [], [0, 1], "1", 1.0, True, -1, 1 << 32, 1 << 63)),
    ],
}


@cache
def header_of(kind: str = "backoff") -> dict[str, Any]:
    return split_file(encode_bundle(sound(kind)))[0]


def changed(key: str, value: Any, kind: str = "backoff") -> bytes:
    return msgpack.packb({**header_of(kind), key: value})


def without(key: str) -> bytes:
    return msgpack.packb({k: v for k, v in header_of().items() if k != key})


def doubled(key: str, inner: str | None = None) -> bytes:
    """The header with a key twice, at the top or in one of its maps."""
    header = header_of()
    if inner is None:
        return pack_pairs([*header.items(), (key, header[key])])
    pairs = [*header[key].items(), (inner, header[key][inner])]
    return pack_pairs((header | {key: pack_pairs(pairs)}).items())


def with_raw(key: str, data: bytes) -> bytes:
    """The header with a value that no packer writes."""
    return pack_pairs((header_of() | {key: Packed(data)}).items())


HEADERS: dict[str, bytes] = {
    **{
        f"{key}-{number}": changed(key, value)
        for key, values in VALUES.items()
        for number, value in enumerate(values)
    },
    **{f"without-{key}": without(key) for key in VALUES},
    **{f"twice-{key}": doubled(key) for key in VALUES},
    "keys-in-another-order": msgpack.packb(dict(reversed(header_of().items()))),
    "a-number-in-more-bytes-than-it-takes": with_raw("statistics", b"\x81\xa1a\xcd\x00\x01"),
    "twice-in-fingerprints": doubled("fingerprints", "target"),
    "twice-in-parameters": doubled("parameters", "p_min"),
    "twice-in-statistics": doubled("statistics", "entries"),
    "twice-in-sections": doubled("sections", "backoff.numbers"),
    "twice-in-a-corpus-file": with_raw(
        "corpus",
        pack_pairs([("files", Packed(b"\x91" + pack_pairs([("name", ""), ("name", "")])))]),
    ),
    "another-key": changed("more", 1),
    "a-key-of-bytes": msgpack.packb({**header_of(), b"kind": 1}),
    "a-key-of-a-number": msgpack.packb({**header_of(), 5: 1}),
    "a-key-of-a-list": pack_pairs([*header_of().items(), (Packed(b"\x90"), 1)]),
    "unknown-kind-with-roles-of-bytes": msgpack.packb(
        {**header_of(), "kind": "other", "fingerprints": {b"a": HEX, "b": HEX}}
    ),
    "alignment-without-draft": msgpack.packb({**header_of(), "kind": "alignment"}),
    "empty": b"",
    "a-list": msgpack.packb(list(header_of())),
    "a-number": msgpack.packb(5),
    "nothing": msgpack.packb(None),
    "two-headers": msgpack.packb(header_of()) * 2,
    "cut": msgpack.packb(header_of())[:-1],
    "a-byte-more": msgpack.packb(header_of()) + b"\0",
    "lists-in-lists": b"\x91" * 200_000 + b"\x90",
    "maps-in-maps": b"\x81\xa1a" * 200_000 + b"\x80",
    "deep-in-parameters": with_raw("parameters", b"\x81\xa1a" * 900 + b"\x80"),
    "a-map-of-four-billion": b"\xdf\xff\xff\xff\xff",
    "a-list-of-four-billion": b"\xdd\xff\xff\xff\xff",
    "a-text-of-four-billion": with_raw("kind", b"\xdb\xff\xff\xff\xff"),
    "bytes-of-four-billion": with_raw("kind", b"\xc6\xff\xff\xff\xff"),
    "an-extension-of-four-billion": with_raw("kind", b"\xc9\xff\xff\xff\xff\x05"),
    "a-reserved-byte": with_raw("kind", b"\xc1"),
    "a-bad-timestamp": with_raw("kind", b"\xc7\x03\xffabc"),
    "a-timestamp-out-of-range": with_raw("kind", b"\xd7\xff" + b"\xff" * 8),
    "broken-utf-8": with_raw("kind", b"\xa2\xff\xfe"),
    "broken-utf-8-in-a-key": with_raw("parameters", b"\x81\xa2\xff\xfe\x01"),
    "a-surrogate": with_raw("parameters", b"\x81\xa1a\xa3\xed\xa0\x80"),
    "three-megabytes": changed("parameters", {"a": list(range(256)) * 8_000}),
    **{
        f"logits-{number}": changed("fingerprints", value, "logits")
        for number, value in enumerate([{}, {"draft": HEX}, {"target": HEX, "draft": HEX}])
    },
}
PREAMBLES: dict[str, dict[str, int]] = {
    **{f"version-{version}": {"version": version} for version in (0, 1, 2, 4, 65_535)},
    "reserved-bytes": {"reserved": 1},
    "length-0": {"length": 0},
    "length-1-less": {"length": -1},
    "length-1-more": {"length": 1},
    "length-of-four-billion": {"length": (1 << 32) - 1},
}


@pytest.mark.parametrize("attack", [*HEADERS, *PREAMBLES])
def test_a_forged_header_is_refused(folder: Path, attack: str) -> None:
    kind = "logits" if attack.startswith("logits-") else "backoff"
    path = folder / name_of(kind)
    header, body = msgpack.packb(header_of(kind)), split_file(encode_bundle(sound(kind)))[1]
    how = dict(PREAMBLES.get(attack, {}))
    if abs(how.get("length", 0)) == 1:
        how["length"] += len(header)
    path.write_bytes(forge_file(HEADERS.get(attack, header), body, **how))
    assert_refused(path, kind)
    assert_not_pushed(path)
    with pytest.raises(BundleError):
        read_header(path)


@pytest.mark.parametrize("value", [[1, 2], [[], {}, [None]], {"a": [True]}, "\x1b[2J"])
def test_whatever_a_header_may_hold_is_shown(folder: Path, value: Any) -> None:
    path = folder / name_of("backoff")
    body = split_file(encode_bundle(sound("backoff")))[1]
    path.write_bytes(forge_file(changed("statistics", {"more": value}), body))
    for options in ([], ["--json"]):
        assert CliRunner().invoke(show_table, [str(path), *options]).exit_code == 0


# -- sections --------------------------------------------------------------------------------------

Sections = dict[str, bytes]
Change = Callable[[Sections, dict[str, Any]], None]
"""What an attack does to the sections and the parameters of a sound table."""

TO_TARGET, TO_DRAFT = "intersection.draft_to_target", "intersection.target_to_draft"
ROWS, ROW_LENGTHS = "merge_sites.rows", "merge_sites.row_lengths"
SITE_LENGTHS, SITES = "merge_sites.site_lengths", "merge_sites.bytes"
IDS, NUMBERS = "backoff.predictions.ids.u16", "backoff.numbers"
KEYS, LIKELY = "logits.keys", "logits.ids"

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "emptied": lambda _: b"",
    "a-byte-less": lambda data: data[:-1],
    "a-byte-more": lambda data: data + b"\1",
    "halved": lambda data: data[: len(data) // 8 * 4],
    "doubled": lambda data: data * 2,
}


def values(dtype: str, *numbers: int) -> bytes:
    return np.array(numbers, dtype=dtype).tobytes()


def put(section: str, at: int, dtype: str, number: int) -> Change:
    """One value of a section replaced."""

    def change(sections: Sections, _: dict[str, Any]) -> None:
        array = np.frombuffer(sections[section], dtype=dtype).copy()
        array[at] = number
        sections[section] = array.tobytes()

    return change


def become(**new: Any) -> Change:
    """Parameters replaced; those that are MISSING are left out."""

    def change(_: Sections, parameters: dict[str, Any]) -> None:
        parameters.update(new)
        for name in [name for name, value in parameters.items() if value is MISSING]:
            del parameters[name]

    return change


def hold(new: dict[str, bytes | None]) -> Change:
    """Sections replaced, added, and with None taken away."""

    def change(sections: Sections, _: dict[str, Any]) -> None:
        for name, data in new.items():
            sections.pop(name, None)
            if data is not None:
                sections[name] = data

    return change


def swapped(one: str, other: str) -> Change:
    def change(sections: Sections, _: dict[str, Any]) -> None:
        sections[one], sections[other] = sections[other], sections[one]

    return change


CHANGES: dict[str, list[Change]] = {
    "backoff": [
        *(put(IDS, 0, "<u2", bad) for bad in (5, 6, 255, 0xFFFF)),
        put(IDS, -1, "<u2", 0xFFFF),
        hold({IDS: None, "backoff.predictions.ids.u32": values("<u4", 1, 2, 3, 4, 0)}),
        hold({"backoff.predictions.ids.u32": values("<u4", 1, 2, 3, 4, 0)}),
        swapped(IDS, "backoff.predictions.probabilities"),
        swapped("backoff.fingerprints", NUMBERS),
        swapped(NUMBERS, IDS),
        *(become(vocabulary_size=bad) for bad in (MISSING, None, 0, -5, 4, 1 << 40, "5", 5.5)),
        *(become(vocabulary_size=bad) for bad in (True, [5], {"a": 5})),
        *(become(seed=bad) for bad in (MISSING, -1, "0", 0.5, True)),
        *(become(segment_bits=bad) for bad in (MISSING, -1, 0, 17, 18, 19, 64, 1 << 62, "3")),
        *(become(segments=bad) for bad in (MISSING, -1, 0, 2, 3, 16_384, 16_385, 1 << 62)),
        *(become(max_context=bad) for bad in (MISSING, -1, 9, 1 << 62, "1")),
        *(become(p_min=bad) for bad in (MISSING, -0.1, 1.5, 1e300, "0.5", True)),
        *(become(kind=bad) for bad in (MISSING, "dictspec", "Backoff", 5, ["backoff"], "x" * 4000)),
    ],
    "alignment": [
        *(put(TO_TARGET, 0, "<i4", bad) for bad in (5, -2, (1 << 31) - 1, -(1 << 31))),
        *(put(TO_DRAFT, 0, "<i4", bad) for bad in (4, -2, (1 << 31) - 1, -(1 << 31))),
        *(put(ROWS, 0, "<u4", bad) for bad in (3, 0xFFFFFFFF)),
        hold({ROW_LENGTHS: values("<u4", 0, 2, 2)}),
        hold({ROW_LENGTHS: values("<u4", 0, 0xFFFFFFFF, 4)}),  # 3 in 32 bits
        hold({ROW_LENGTHS: values("<u4", 0, 3)}),
        hold({ROW_LENGTHS: values("<u4", 0, 2, 1, *[0] * 100_000)}),
        hold({ROW_LENGTHS: values("<u4", 1, 1, 1)}),  # row 0 is that of tokens without sites
        hold({SITE_LENGTHS: values("u1", 0, 3, 1)}),
        hold({SITE_LENGTHS: values("u1", 1, 2, 1, *[0] * 100_000)}),
        hold({SITE_LENGTHS: values("u1", 255, 255, 255)}),
        hold({SITE_LENGTHS: values("u1", 1, 3, 0)}),
        hold({SITES: b"bacc"}),  # unsorted
        hold({SITES: b"aaac", SITE_LENGTHS: values("u1", 2, 2)}),
        hold({SITES: b"aac", SITE_LENGTHS: values("u1", 1, 1, 1)}),  # twice
        swapped(TO_TARGET, TO_DRAFT),
        swapped(ROWS, ROW_LENGTHS),
        swapped(SITE_LENGTHS, SITES),
        swapped(ROW_LENGTHS, SITE_LENGTHS),
    ],
    "logits": [
        *(put(LIKELY, at, "<u4", bad) for at in (0, -1) for bad in (5, 0xFFFFFFFF)),
        *(put(KEYS, 0, "<u8", bad) for bad in (0, 4, 1 << 63)),  # of no ids
        put(KEYS, 0, "<u8", 5 << 2 | 1),  # of an id that the vocabulary lacks
        put(KEYS, 0, "<u8", (5 << 20 | 1) << 2 | 2),
        put(KEYS, 0, "<u8", (1 << 20 | 1) << 2 | 1),  # of more ids than its length says
        put(KEYS, 0, "<u8", 1 << 63 | 1 << 2 | 3),
        swapped(KEYS, LIKELY),
        swapped(LIKELY, "logits.codes"),
        *(become(vocabulary_size=bad) for bad in (MISSING, None, 0, -5, 4, 1 << 40, "5", True)),
    ],
}


UNSEEN_BY_VERIFY = {
    f"{TO_TARGET}-doubled",
    "backoff-larger-vocabulary",
    "logits-larger-vocabulary",
}
"""Only the tokenizers show that something is wrong: such a table is refused when it is used."""


def damage(section: str, how: Callable[[bytes], bytes | None]) -> Change:
    return lambda sections, _: hold({section: how(sections[section])})(sections, {})


def section_attacks() -> Iterator[tuple[str, str, Change]]:
    """Kind and name of each attack, and what it does."""
    names = {
        "backoff": ("backoff.fingerprints", NUMBERS, IDS, "backoff.predictions.probabilities"),
        "logits": (KEYS, LIKELY, "logits.codes"),
        "alignment": (TO_TARGET, TO_DRAFT, ROWS, ROW_LENGTHS, SITE_LENGTHS, SITES),
    }
    for kind, sections in names.items():
        for section in sections:
            for name, how in DAMAGES.items():
                yield kind, f"{section}-{name}", damage(section, how)
        for number, change in enumerate(CHANGES[kind]):
            yield kind, f"{kind}-{number}", change
        if kind != "alignment":
            yield kind, f"{kind}-larger-vocabulary", become(vocabulary_size=6)


SECTIONS = {name: (kind, change) for kind, name, change in section_attacks()}


@pytest.mark.parametrize("attack", SECTIONS)
def test_a_section_with_a_right_checksum_and_wrong_content_is_refused(
    folder: Path, attack: str
) -> None:
    kind, change = SECTIONS[attack]
    bundle = sound(kind)
    sections = {name: bytes(section) for name, section in bundle.sections.items()}
    parameters = dict(bundle.parameters)
    change(sections, parameters)
    forged = encode_bundle(replace(bundle, sections=sections, parameters=parameters))
    assert forged != encode_bundle(bundle)
    path = folder / name_of(kind)
    path.write_bytes(forged)
    assert read_header(path).kind == KINDS[kind]
    verified = attack not in UNSEEN_BY_VERIFY
    assert_refused(path, kind, verified=verified)
    if verified:
        assert_not_pushed(path)
    assert CliRunner().invoke(show_table, [str(path)]).exit_code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_sound_tables_are_used(folder: Path, kind: str) -> None:
    path = folder / name_of(kind)
    header, body = split_file(encode_bundle(sound(kind)))
    # Forged without a fault, so that what is refused above is refused for the fault alone.
    path.write_bytes(forge_file(msgpack.packb(header), body))
    verify_table(path)
    notes: list[str] = []
    assert use(kind, note=notes.append) is not None
    assert notes == [f"{KINDS[kind]} -> {path}"]
    push(path)
    if kind != "logits":
        use(kind, file=path)


# -- files -----------------------------------------------------------------------------------------


def sparse(path: Path, *, begin: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(size)


def preamble(length: int) -> bytes:
    return forge_file(b"")[:12] + length.to_bytes(4, "little")


FILES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "dangling-link": lambda path: path.symlink_to(path.parent / "nothing"),
    "link-to-itself": lambda path: path.symlink_to(path),
    "link-to-a-folder": lambda path: ((path.parent / "f").mkdir(), path.symlink_to("f")),
    "link-to-endless-zeros": lambda path: path.symlink_to("/dev/zero"),
    "link-to-the-null-device": lambda path: path.symlink_to(os.devnull),
    "fifo": lambda path: os.mkfifo(path),
    "link-to-a-fifo": lambda path: (os.mkfifo(path.parent / "f"), path.symlink_to("f")),
    "empty": lambda path: path.write_bytes(b""),
    "one-byte": lambda path: path.write_bytes(b"t"),
    "magic-alone": lambda path: path.write_bytes(b"tokalign"),
    "text": lambda path: path.write_text("Wisła jest najdłuższą rzeką w Polsce.\n" * 99),
    "page": lambda path: path.write_text("<!doctype html><title>404 Not Found</title>"),
    "git-lfs-pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
    "archive": lambda path: path.write_bytes(b"PK\3\4" + bytes(4096)),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "noise": lambda path: path.write_bytes(np.random.default_rng(1).bytes(4096)),
    "magic-and-noise": lambda path: path.write_bytes(b"tokalign\2\0" + bytes(range(256)) * 9),
    "sparse-zeros": lambda path: sparse(path, begin=b"", size=3 << 30),
    "sparse-too-large": lambda path: sparse(path, begin=b"tokalign", size=1 << 40),
    "sparse-with-a-sound-start": lambda path: sparse(
        path, begin=encode_bundle(sound("backoff")), size=3 << 30
    ),
    "sparse-that-is-all-header": lambda path: sparse(
        path, begin=preamble((3 << 30) - 48), size=3 << 30
    ),
}
if sys.platform != "linux":
    del FILES["link-to-endless-zeros"]


@pytest.mark.parametrize("attack", FILES)
def test_what_is_no_table_is_passed_over(folder: Path, attack: str) -> None:
    """A folder that is searched holds anything; nothing in it stops a run or keeps it waiting."""
    path = folder / name_of("backoff")
    FILES[attack](path)
    links = ("dangling-link", "link-to-itself")
    assert_refused(path, "backoff", MissingAssetError if attack in links else BundleError)


def test_names_are_shown_on_one_line(folder: Path) -> None:
    names = ("a\nb", "a\x1b[2Jb", "a\udcffb")
    for name in names:
        (folder / f"{name}.dictionary.tok").write_text("no table")
        (folder / f"{name}-sound.dictionary.tok").write_bytes(encode_bundle(sound("backoff")))
    notes: list[str] = []
    table = open_dictionary(TARGET, note=notes.append)
    assert isinstance(table, Dictionaries)
    assert len(table.by_source) == len(names)
    assert len(notes) == 2 * len(names)
    assert all(text.isprintable() for text in (*table.by_source, *notes))


@pytest.mark.parametrize("attack", ["\0", "x" * 5000, "a\0.dictionary.tok"])
def test_a_name_that_no_file_can_have_is_a_missing_file(attack: str) -> None:
    for refuses in (lambda: use("backoff", file=attack), lambda: verify_table(Path(attack))):
        with pytest.raises(MissingAssetError, match="tokalign build") as caught:
            refuses()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("attack", ["~nobody-of-this-name/tables", "x" * 5000, "/dev/null", "\n"])
def test_a_folder_that_is_none_holds_no_tables(
    monkeypatch: pytest.MonkeyPatch, folder: Path, attack: str
) -> None:
    monkeypatch.setenv("TOKALIGN_TABLES", attack)
    assert use("backoff") is None
    assert use("alignment") is not None


def test_a_folder_that_leads_back_to_itself_is_searched_once(folder: Path) -> None:
    (folder / "again").symlink_to(folder)
    (folder / name_of("backoff")).write_bytes(encode_bundle(sound("backoff")))
    assert use("backoff") is not None


def test_a_file_that_may_not_be_read_is_passed_over(folder: Path) -> None:
    path = folder / name_of("backoff")
    path.write_bytes(encode_bundle(sound("backoff")))
    path.chmod(0)
    for parent in (folder, *folder.parents):
        if parent.stat().st_mode & 0o001 == 0 and not os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    with nobody():
        assert_refused(path, "backoff", MissingAssetError)
