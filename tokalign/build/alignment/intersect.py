"""Which tokens two vocabularies share, byte for byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary


def intersect(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Intersection:
    """Match the ordinary tokens of two vocabularies by their bytes.

    Example: Mistral's token `ą` is the bytes C4 85, and Llama has a token of the same bytes. The
    token-level intersections of Transformers and vLLM match *strings*. They pair `ą` with Llama's
    token of the byte 05, which the byte-level alphabet happens to write as `ą`.
    Cost: O(size of both vocabularies).
    """
    return Intersection(
        draft_to_target=_map_ids(draft, target), target_to_draft=_map_ids(target, draft)
    )


def _map_ids(
    source: Vocabulary[DraftId] | Vocabulary[TargetId],
    onto: Vocabulary[DraftId] | Vocabulary[TargetId],
) -> NDArray[np.int32]:
    """For each id of `source` the id of `onto` with the same bytes; NO_TOKEN if there is none."""
    ids = onto.id_of
    return np.array([ids.get(token, NO_TOKEN) for token in source.tokens], dtype=np.int32)
