"""The packed dictionary answers as a dict does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from small_tables import bundle_of

from tokalign.tables.bundle import read_bundle, write_bundle
from tokalign.tables.dictspec import Continuation, DictSpecTable

# Few different ids, so that contexts end each other; the largest that the id width must hold.
SMALL_VOCABULARY, LARGE_VOCABULARY = 1 << 16, 1 << 20


def id_tuples(vocabulary_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    ids = st.sampled_from([0, 1, 2, 255, 256, vocabulary_size - 1])
    return st.lists(ids, min_size=1, max_size=8).map(tuple)


def entries_of(vocabulary_size: int) -> st.SearchStrategy[Any]:
    ids = id_tuples(vocabulary_size)
    return st.dictionaries(ids, st.tuples(ids, st.integers(0, 255).map(lambda p: p / 255)))


vocabularies = st.sampled_from([SMALL_VOCABULARY, LARGE_VOCABULARY])
tables = vocabularies.flatmap(lambda size: st.tuples(entries_of(size), st.just(size)))


def longest_match_in(entries: dict[Any, Any], suffix: list[int]) -> Continuation | None:
    for start in range(max(0, len(suffix) - 8), len(suffix)):
        found = entries.get(tuple(suffix[start:]))
        if found is not None:
            return Continuation(found[0], found[1], len(suffix) - start)
    return None


@given(tables, st.data())
def test_the_longest_stored_suffix_is_found_as_in_a_dict(
    built: tuple[Any, int], draw: st.DataObject
) -> None:
    entries, size = built
    table = DictSpecTable.from_entries(entries, size)
    assert len(table) == len(entries)
    queries = [list(context) for context in entries]
    queries += [[0, *query] for query in queries]
    queries.append(draw.draw(st.lists(st.sampled_from([0, 1, 2, 255, size - 1]), max_size=12)))
    for query in queries:
        assert table.longest_match(query) == longest_match_in(entries, query)


@given(tables)
def test_all_entries_are_listed(built: tuple[Any, int]) -> None:
    entries, size = built
    listed = dict(DictSpecTable.from_entries(entries, size).items())
    assert {context: (found.ids, found.probability) for context, found in listed.items()} == entries
    assert all(found.matched == len(context) for context, found in listed.items())


@given(tables, st.randoms())
def test_sections_hold_the_table_and_do_not_depend_on_the_order(
    built: tuple[Any, int],
    random,  # type: ignore[no-untyped-def]
) -> None:
    entries, size = built
    items = list(entries.items())
    random.shuffle(items)
    sections = DictSpecTable.from_entries(entries, size).to_sections()
    assert DictSpecTable.from_entries(dict(items), size).to_sections() == sections
    again = DictSpecTable.from_bundle(bundle_of(sections), size)
    assert again.to_sections() == sections


def test_a_file_serves_lookups_after_everything_else_is_gone(tmp_path: Path) -> None:
    built = DictSpecTable.from_entries({(5, 6): ((7, 8), 1.0)}, SMALL_VOCABULARY)  # type: ignore[dict-item]
    path = tmp_path / "pl.dictionary.tok"
    write_bundle(path, bundle_of(built.to_sections()))
    table = DictSpecTable.from_bundle(read_bundle(path), SMALL_VOCABULARY)
    del built
    assert table.longest_match([1, 5, 6]) == Continuation((7, 8), 1.0, 2)  # type: ignore[list-item, arg-type]


def test_a_rest_that_ends_another_takes_no_room() -> None:
    entries = {(1,): ((2, 3, 4), 0.5), (1, 2): ((3, 4), 0.5), (1, 2, 3): ((4,), 0.5)}
    sections = DictSpecTable.from_entries(entries, SMALL_VOCABULARY).to_sections()  # type: ignore[arg-type]
    assert len(sections["continuations.pool.u16"]) == 2 * 3
