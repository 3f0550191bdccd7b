"""The DictSpec dictionary: the worked example, a plain re-creation, and running text."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokalign.build.dictionary.dictspec import best_continuations, find_continuations
from tokalign.tokenizer.tokenizer import Tokenizer

sequences = st.dictionaries(
    st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple), st.integers(1, 20)
)


def test_the_example_of_the_module() -> None:
    w, pol, sce, ske = range(4)
    found = best_continuations([((w, pol, sce), 60), ((w, pol, ske), 40)], p_min=0.2)  # type: ignore[list-item]
    assert found == {(w,): ((pol, sce), 0.6), (w, pol): ((sce,), 0.6)}


@given(sequences, st.sampled_from([0.01, 0.2, 0.5, 1.0]))
def test_every_prefix_keeps_its_best_rest_if_that_is_likely_enough(
    counted: Any, p_min: float
) -> None:
    rests: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
    for ids, count in counted.items():
        for length in range(1, min(len(ids), 9)):
            rests[ids[:length]][ids[length : length + 8]] += count
    found = best_continuations(counted.items(), p_min=p_min)
    for prefix, mass in rests.items():
        most = max(mass.values())
        likely = most / mass.total() >= p_min
        assert (prefix in found) == likely
        if likely:
            best, probability = found[prefix]
            assert mass[best] == most
            assert probability == most / mass.total()
    assert set(found) <= set(rests)


def test_ngrams_are_encoded_as_they_stand_in_running_text(tokenizer: Tokenizer[Any]) -> None:
    """After ids of running text the dictionary finds the rest of a known n-gram."""
    words = ("Rzeczpospolitej", "Polskiej")
    table = find_continuations([(words, 5)], tokenizer, p_min=0.2)
    text = tokenizer.encode("w Rzeczpospolitej Polskiej")
    ngram = tokenizer.bpe.encode(b" Rzeczpospolitej Polskiej")
    assert text[-len(ngram) :] == ngram
    start = len(text) - len(ngram)
    for position in range(start + 1, min(start + 8, len(text) - 1) + 1):
        found = table.longest_match(text[:position])
        assert found is not None
        assert list(found.ids) == text[position : position + 8]
        assert found.matched == position - start


def test_progress_counts_the_ngrams(bielik: Tokenizer[Any]) -> None:
    done: list[int] = []
    find_continuations([(("a",), 1), (("b", "c"), 1)], bielik, p_min=0.2, progress=done.append)
    assert sum(done) == 2
