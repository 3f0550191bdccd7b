"""The DictSpec dictionary: its worked examples, brute force, and running text."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.dictspec.builder import EncodedNgram, Ids, best_continuations, find_continuations
from lab.dictspec.table import DictSpecTable
from tokalign.tokenizer.tokenizer import Tokenizer

encoded_ngrams = st.lists(
    st.builds(
        EncodedNgram,
        st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple),
        order=st.integers(1, 3),
        occurrences=st.integers(1, 20),
    ),
    max_size=12,
)


def ngram(ids: Any, *, order: int, occurrences: int) -> EncodedNgram:
    return EncodedNgram(tuple(ids), order, occurrences)


def test_the_example_of_the_module(bielik: Tokenizer[Any]) -> None:
    tokens = bielik.vocabulary.tokens
    counted = [(("w", "Polsce"), 60), (("w", "Polskę"), 40)]
    table = find_continuations(counted, bielik, p_min=0.2)
    found = {
        tuple(tokens[i].decode() for i in prefix): (
            [tokens[i].decode() for i in rest],
            pytest.approx(probability),
        )
        for prefix, rest, probability in table.entries()
    }
    assert found == {
        (" w",): ([" Pol", "s", "ce"], 1.0),
        (" w", " Pol"): (["s", "ce"], 0.6),
        (" w", " Pol", "s"): (["ce"], 1.0),
        (" w", " Pol", "sk"): (["ę"], 1.0),
    }


def test_the_probability_of_table_1_of_the_paper() -> None:
    """A trigram that begins with the same words takes nothing away from the bigram."""
    prefix = (12, 47, 91, 103, 255)
    computer, communicator = (301, 404, 509), (610, 611, 612)
    ngrams = [
        ngram((*prefix, *computer), order=2, occurrences=12_400),
        ngram((*prefix, *communicator), order=2, occurrences=180),
        ngram((*prefix, *computer, 7), order=3, occurrences=900),
        ngram((*prefix, *communicator, 8), order=3, occurrences=800),
    ]
    rest, probability = best_continuations(ngrams, p_min=0.2)[prefix]  # type: ignore[index]
    assert rest == computer
    assert probability == pytest.approx(0.986, abs=5e-4)


def test_ties_go_to_the_longer_rest() -> None:
    ngrams = [ngram((1, 2), order=1, occurrences=5), ngram((1, 2, 3, 4), order=2, occurrences=1)]
    found: Any = best_continuations(ngrams, p_min=0.2)
    assert found[1,] == ((2, 3, 4), 1.0)


def test_a_prefix_longer_than_a_key_keeps_its_last_ids() -> None:
    found: Any = best_continuations([ngram(range(12), order=3, occurrences=1)], p_min=0.2)
    assert found[3, 4, 5, 6, 7, 8, 9, 10] == ((11,), 1.0)
    assert found[0,] == ((1, 2, 3, 4, 5, 6, 7, 8), 1.0)
    assert len(found) == 11


@given(encoded_ngrams, st.sampled_from([0.01, 0.2, 0.5, 1.0]))
def test_every_prefix_keeps_the_most_frequent_rest_of_its_most_probable_id(
    ngrams: list[EncodedNgram], p_min: float
) -> None:
    """Against every cut of every n-gram, one by one."""
    rests: defaultdict[Ids, defaultdict[int, Counter[Ids]]]
    rests = defaultdict(lambda: defaultdict(Counter))
    for ids, order, occurrences in ngrams:
        for cut in range(1, len(ids)):
            rests[ids[:cut][-8:]][order][ids[cut:][:8]] += occurrences
    found = best_continuations(ngrams, p_min=p_min)
    for prefix, by_order in rests.items():
        probabilities: dict[tuple[int, Any], float] = {}
        for order, counts in by_order.items():
            for following in {rest[0] for rest in counts}:
                begin_so = sum(n for rest, n in counts.items() if rest[0] == following)
                probabilities[order, following] = begin_so / counts.total()
        highest = max(probabilities.values())
        assert (prefix in found) == (highest >= p_min)
        if prefix in found:
            rest, probability = found[prefix]
            assert probability == highest
            order = max(order for (order, _), p in probabilities.items() if p == highest)
            assert probabilities[order, rest[0]] == highest
            rivals = {r: n for r, n in by_order[order].items() if r[0] == rest[0]}
            assert rivals[rest] == max(rivals.values())
            assert len(rest) == max(len(r) for r, n in rivals.items() if n == rivals[rest])
    assert set(found) <= set(rests)


def test_p_min_bounds_the_next_id_and_not_the_whole_rest() -> None:
    """Ten ways to go on, each rare, begin with one id: they are offered all the same."""
    ngrams = [ngram((1, 2, ending), order=1, occurrences=1) for ending in range(10)]
    found: Any = best_continuations(ngrams, p_min=0.9)
    rest, probability = found[1,]
    assert rest[0] == 2
    assert probability == 1.0
    assert (1, 2) not in found


def test_ngrams_are_encoded_as_they_stand_in_running_text(tokenizer: Tokenizer[Any]) -> None:
    """After ids of running text the dictionary finds the rest of a known n-gram."""
    words = ("Rzeczpospolitej", "Polskiej")
    table = find_continuations([(words, 5)], tokenizer, p_min=0.2)
    text = tokenizer.encode("w Rzeczpospolitej Polskiej")
    encoded = tokenizer.bpe.encode(b" Rzeczpospolitej Polskiej")
    assert text[-len(encoded) :] == encoded
    start = len(text) - len(encoded)
    for position in range(start + 1, len(text)):
        found = table.longest_match(text[:position])
        assert found is not None
        assert list(found.ids) == text[position : position + 8]
        assert found.matched == min(8, position - start)


def test_a_longer_continuation_goes_on_where_no_context_matches() -> None:
    entries: Any = {(1,): ((2, 3), 0.5), (9, 1): ((4,), 0.9)}
    table = DictSpecTable(entries)
    assert table.match_length([7, 9, 1]) == 2  # type: ignore[list-item]
    assert [token for token, _ in table.expected([1, 2])] == [3]  # type: ignore[list-item]
    assert table.follow([1], 8).ids == (2, 3)  # type: ignore[list-item]


@given(encoded_ngrams)
def test_a_table_keeps_what_it_is_given(ngrams: list[EncodedNgram]) -> None:
    given: Any = best_continuations(ngrams, p_min=0.2)
    table = DictSpecTable(given)
    found = {prefix: (rest, probability) for prefix, rest, probability in table.entries()}
    assert found == {
        prefix: (rest, pytest.approx(probability)) for prefix, (rest, probability) in given.items()
    }
    assert len(table) == len(given)


def test_ids_of_large_vocabularies_fit() -> None:
    table = DictSpecTable({(1, 262_143): ((262_142, 7), 0.5)})  # type: ignore[dict-item]
    found = table.longest_match([9, 1, 262_143])  # type: ignore[list-item]
    assert found == ((262_142, 7), 0.5, 2)


@given(encoded_ngrams, st.sampled_from([0.2, 0.5, 0.9, 1.0]))
def test_a_stricter_table_is_one_that_was_built_so(
    ngrams: list[EncodedNgram], p_min: float
) -> None:
    built: Any = DictSpecTable(best_continuations(ngrams, p_min=p_min))
    loosest = DictSpecTable(best_continuations(ngrams, p_min=0.01))
    for suffix in {context for context, _, _ in loosest.entries()}:
        assert loosest.at_least(p_min).longest_match(suffix) == built.longest_match(suffix)
