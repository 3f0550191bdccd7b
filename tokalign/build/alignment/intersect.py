"""Which tokens two vocabularies share, byte for byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokalign.tables.alignment import NO_TOKEN, Intersection
from tokalign.tokenizer.vocabulary import DraftId, TargetId, Vocabulary


def intersect(draft: Vocabulary[DraftId], target: Vocabulary[TargetId]) -> Intersection:
    """Match the ordinary tokens of two vocabularies by their bytes.

    Example: Mistral's `ą` is the bytes C4 85, and so is one token of Llama's. Matching *strings*,
    as the token-level intersections of Transformers and vLLM do, pairs it with Llama's byte 0x05,
    whose stand-in in the byte-level alphabet happens to be the character `ą`.
    Cost: O(size of both vocabularies).
    """
    return Intersection(
        draft_to_target=_map_ids(draft, target), target_to_draft=_map_ids(target, draft)
    )


def _map_ids(
    source: Vocabulary[DraftId] | Vocabulary[TargetId],
    onto: Vocabulary[DraftId] | Vocabulary[TargetId],
) -> NDArray[np.int32]:
    """For each id of `source` the id of `onto` with the same bytes, literal pieces first."""
    ids = onto.id_of
    return np.array([ids.get(token, NO_TOKEN) for token in source.tokens], dtype=np.int32)
