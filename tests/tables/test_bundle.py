"""A bundle comes back as it was written, or not at all: every damage is an error."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_tables import write_bundle

from tokalign.errors import BundleError, FingerprintError
from tokalign.tables.bundle import (
    FORMAT_VERSION,
    Bundle,
    decode_bundle,
    encode_bundle,
    read_bundle,
    read_header,
)

SMALL = Bundle(
    kind="dictionary",
    fingerprints={"target": "0f" * 32},
    corpus={"files": [{"name": "a.txt", "lines": 2}]},
    parameters={"p_min": 0.2},
    statistics={"entries": 1},
    sections={"one": b"abc", "two": bytes(range(70)), "empty": b""},
)

plain = st.one_of(
    st.integers(0, 1 << 40), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
keys = st.text(max_size=8).map("{}!".format)  # none that the schema gives a type
mappings = st.dictionaries(keys, plain, max_size=4)
stamps = st.fixed_dictionaries(
    {"name": st.text(max_size=8)},
    optional={"lines": st.integers(0, 1 << 40), "weight": st.just(0.5), "private": st.booleans()},
)
section_names = st.text("abc._", min_size=1, max_size=8)
bundles = st.builds(
    lambda roles, **content: Bundle(
        kind="alignment" if len(roles) == 2 else "dictionary",
        fingerprints=dict.fromkeys(roles, "0f" * 32),
        **content,
    ),
    st.sampled_from([("target",), ("target", "draft")]),
    corpus=st.builds(lambda files: {"files": files}, st.lists(stamps, max_size=2)),
    parameters=mappings,
    statistics=mappings,
    sections=st.dictionaries(section_names, st.binary(max_size=200), max_size=4),
)


@given(bundles)
def test_a_bundle_comes_back_equal(bundle: Bundle) -> None:
    read = decode_bundle(encode_bundle(bundle))
    assert {name: bytes(section) for name, section in read.sections.items()} == bundle.sections
    assert replace(read, sections={}) == replace(bundle, sections={})


@given(bundles, st.randoms())
def test_equal_bundles_are_equal_bytes_whatever_the_order_of_keys(bundle: Bundle, random) -> None:  # type: ignore[no-untyped-def]
    def shuffled(mapping):  # type: ignore[no-untyped-def]
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    maps = ("fingerprints", "corpus", "parameters", "statistics", "sections")
    other = replace(bundle, **{name: shuffled(getattr(bundle, name)) for name in maps})
    assert encode_bundle(other) == encode_bundle(bundle)


def test_any_flipped_bit_is_found() -> None:
    data = encode_bundle(SMALL)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BundleError):
                decode_bundle(bytes(damaged))


@pytest.mark.parametrize("read", [read_header, read_bundle])
def test_any_other_length_is_found_without_reading_everything(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    data = encode_bundle(SMALL)
    for length in range(len(data)):
        (tmp_path / "a.tok").write_bytes(data[:length])
        with pytest.raises(BundleError, match="truncated"):
            read(tmp_path / "a.tok")
    (tmp_path / "a.tok").write_bytes(data + b"\0")
    with pytest.raises(BundleError, match="1 bytes after its end"):
        read(tmp_path / "a.tok")


def test_the_file_is_as_documented() -> None:
    """Read with nothing but docs/table-format.md."""
    data = encode_bundle(SMALL)
    magic, version, zero, length = struct.unpack_from("<8sHHI", data)
    assert (magic, version, zero) == (b"tokalign", FORMAT_VERSION, 0)
    header = msgpack.unpackb(data[16 : 16 + length])
    assert list(header) == sorted(header)
    assert data[16 + length : 48 + length] == hashlib.sha256(data[: 16 + length]).digest()
    start = 48 + length
    for name, size in header["sections"].items():
        assert data[start : start + size] == SMALL.sections[name]
        start += size
    assert start == len(data) - 32
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()


def test_a_section_is_a_view_that_the_file_no_longer_changes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.tok", SMALL)
    section = read_bundle(tmp_path / "a.tok").sections["two"]
    (tmp_path / "a.tok").write_bytes(bytes(1000))
    assert isinstance(section, memoryview)
    assert section.readonly
    assert bytes(section) == SMALL.sections["two"]


def test_what_a_table_is_found_by_is_read_from_the_header_alone(tmp_path: Path) -> None:
    damaged = bytearray(encode_bundle(SMALL))
    damaged[-40] ^= 1  # inside the last section
    (tmp_path / "a.tok").write_bytes(damaged)
    assert read_header(tmp_path / "a.tok").kind == "dictionary"
    with pytest.raises(BundleError, match="checksum"):
        read_bundle(tmp_path / "a.tok")


def test_a_table_of_another_tokenizer_is_refused_with_the_command_that_rebuilds_it() -> None:
    pair = Bundle(
        kind="alignment", fingerprints={"target": "t1", "draft": "d1"}, sections={}, name="x.tok"
    )
    pair.require(target="t1", draft="d1", remedy="tokalign build")
    for target, draft in (("t2", "d1"), ("t1", "d2")):
        with pytest.raises(FingerprintError, match=r"x\.tok.*tokalign build --draft"):
            pair.require(target=target, draft=draft, remedy="tokalign build --draft d")
