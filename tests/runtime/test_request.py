"""A decoder is shared: what one request asks for does not show in another's output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from random_models import decoder_of, emitted

from tokalign.errors import UsageError
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.drafting import PLAINLY
from tokalign.runtime.generate import Generation, together
from tokalign.runtime.grammar import Grammar
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.remembered import OutputStore
from tokalign.runtime.request import Request

Pair = tuple[LanguageModel[Any], LanguageModel[Any]]


def test_requests_of_one_decoder_give_what_they_give_alone(demo_pair: Pair) -> None:
    """Round by round in turns, with other methods, lengths, samplers, grammars, ends and texts."""
    how = {"method": "hybrid", "translation": "exact", "num_draft_tokens": 3}
    decoder = decoder_of(demo_pair, **how)
    prompt, earlier = decoder.prompt("Wisła jest", use_template=False), OutputStore()
    earlier.add(demo_pair[0].tokenizer.encode(" najdłuższą rzeką w Polsce"))
    usual, options = Request(prompt, max_tokens=20), decoder.drafting.options
    requests = [
        usual,
        replace(usual, options=PLAINLY),
        replace(usual, options=replace(options, num_draft_tokens=7, alternatives=0)),
        replace(usual, sampler=Sampling(temperature=0.9, seed=4)),
        replace(usual, grammar=Grammar.regex("[a-zł ]+"), outputs=(earlier.text,)),
        replace(usual, stop=("e", "."), max_tokens=30),
        replace(usual, stop_ids=frozenset(range(300, 900)), prompt=Prompt(target=[5, 17, 3])),
    ]
    alone = [emitted(Generation(decoder_of(demo_pair, **how), one)) for one in requests]
    shared = [Generation(decoder, one) for one in requests]
    for _ in together(shared, decoder.open_batch(), at_once=3):
        pass
    assert [[*one.context.emitted] for one in shared] == alone
    assert len(set(map(tuple, alone))) >= 5
    assert alone[0] == alone[1] == alone[2]


@pytest.mark.parametrize("wrong", [{"max_tokens": -1}, {"max_tokens": 1.5}, {"stop": ["a", 3]}])
def test_what_cannot_be_asked_for_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Request(Prompt(target=[]), **wrong)
