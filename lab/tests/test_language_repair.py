"""The table of what repairs a drafter's language."""

from __future__ import annotations

from lab.benchmarks.language_repair import LANGUAGES, table


def test_shares_are_of_english_with_its_dictionary_if_there_is_one() -> None:
    found = {language: {"known": 1.0, "alone": 0.5, "a": 1.0} for language in LANGUAGES}
    found["en"] = {"known": 1.0, "alone": 2.0}
    of_language = LANGUAGES.index(next(name for name in LANGUAGES if name != "en"))
    assert "0.500 (25%) | 1.000 (50%)" in table(found)[2 + of_language]
    found["en"]["a"] = 4.0
    assert "0.500 (25%) | 1.000 (25%)" in table(found)[2 + of_language]
