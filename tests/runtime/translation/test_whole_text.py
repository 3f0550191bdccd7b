"""A whole text as a draft model reads it."""

from __future__ import annotations

from typing import Any

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.whole_text import DraftReading
from tokalign.tokenizer.vocabulary import TargetId


def test_an_id_that_the_tokenizer_lacks_has_no_text(
    demo_pair: tuple[LanguageModel[Any], LanguageModel[Any]],
) -> None:
    """A model that is padded may emit one, and a draft model is trained on its outputs."""
    target, draft = (model.tokenizer for model in demo_pair)
    pair = Pair(target, draft)
    ids = target.encode("Wczoraj rano padało.")
    padding = TargetId(len(target.vocabulary) + 3)
    whole, padded = DraftReading(pair, ids), DraftReading(pair, [*ids, padding])
    assert padded.ids == whole.ids
    assert padded.boundaries[:-1] == whole.boundaries
