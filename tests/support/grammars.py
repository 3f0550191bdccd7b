"""Whether an output matches a grammar, for tests of what grammars mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokalign.errors import GrammarError
from tokalign.runtime.grammar import Grammar, constrain
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

_PROMPT = [TargetId(5), TargetId(6)]


def accepts(
    grammar: Grammar, tokenizer: Tokenizer[Any], stops: frozenset[Any], ids: Sequence[int]
) -> bool:
    """Whether an output of these ids may follow a prompt, and end."""
    constraint, end = constrain(grammar, tokenizer, _PROMPT, stops), min(stops)
    try:
        state = constraint.after([*_PROMPT, *map(TargetId, ids)])
    except GrammarError:
        return False
    if state is None or state.allowed is None:
        return False
    return bool(state.allowed[end // 8] >> end % 8 & 1)
