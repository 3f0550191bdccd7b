"""Limits of a generation: how many ids a round may propose."""

from __future__ import annotations

from tokalign.runtime.context import Context
from tokalign.runtime.limits import Limits
from tokalign.tokenizer.vocabulary import TargetId


def test_nothing_is_proposed_across_the_position_where_quantization_begins() -> None:
    limits = Limits(max_tokens=None, quantized_from=20)
    for length, most in ((17, 3), (19, 1), (20, 0)):
        assert limits.proposed(Context([TargetId(0)] * length)) == most
    assert limits.proposed(Context([TargetId(0)] * 21)) > 1000
