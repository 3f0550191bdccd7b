"""The bounds of a header are where its schema says, to the last number."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tokalign.errors import BundleError
from tokalign.tables.header import Header, parse_header


def said(**changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"kind": "pack", "fingerprints": {}, "corpus": {}}
    return {**usual, "parameters": {}, "statistics": {}, "sections": {}, **changes}


def parse(**changes: Any) -> dict[str, Any]:
    header, places = parse_header(msgspec.msgpack.encode(said(**changes), order="sorted"))
    return header | {"sections": places}


def nested(depth: int) -> Any:
    return 1 if not depth else [nested(depth - 1)]


@pytest.mark.parametrize("value", [nested(3), "x" * 4096, -1, None, True, 0.5])
def test_what_json_has_may_be_a_parameter(value: Any) -> None:
    assert parse(parameters={"one": value})["parameters"] == {"one": value}


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"one": nested(4)}},
        {"parameters": {"one": "x" * 4097}},
        {"kind": "x" * 65},
        {"corpus": {"files": [{"more": 3}]}},
    ],
)
def test_what_is_beyond_a_bound_is_refused(changes: Any) -> None:
    """`tests/hostile/test_tables.py` has every kind of wrong value."""
    with pytest.raises(ValueError):
        parse(**changes)


def test_sections_follow_each_other_in_the_order_of_their_names() -> None:
    found = parse(sections={"b": 1, "a": 64, "c": 3})["sections"]
    assert found == {"a": slice(0, 64), "b": slice(64, 65), "c": slice(65, 68)}


def header(**parameters: Any) -> Header:
    return Header(kind="pack", fingerprints={}, parameters=parameters, statistics={"seen": 5})


def test_a_number_is_from_its_least_to_its_most() -> None:
    for value in (2, 4):
        assert header(n=value).number("n", least=2, most=4) == value
    assert header(n=4.0).number("n", most=4) == 4
    assert header().number("seen", most=5) == 5
    assert header(n=0.5).number("n", most=1, kind=float) == 0.5


@pytest.mark.parametrize("value", [1, 5, True, 2.5, "3", None])
def test_another_number_is_refused(value: Any) -> None:
    with pytest.raises(BundleError, match="its header's n is"):
        header(n=value).number("n", least=2, most=4)
    with pytest.raises(BundleError, match="no int"):
        header(n=True).number("n", most=4)


def test_the_size_of_a_vocabulary_is_believed_or_compared() -> None:
    assert header(vocabulary_size=7).vocabulary_size() == 7
    assert header(vocabulary_size=7).vocabulary_size(7) == 7
    with pytest.raises(BundleError, match="a vocabulary of 7 ids, not 8"):
        header(vocabulary_size=7).vocabulary_size(8)
    assert header().language == "unnamed"
