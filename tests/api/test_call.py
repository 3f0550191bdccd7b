"""Prompt caches of generations that were interrupted, or left while they were under way."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import count, islice
from typing import Any

import mlx.core as mx
import pytest
import zoo
from mlx_lm.models.cache import make_prompt_cache
from random_models import plainly
from small_tokenizers import of_merges

from tokalign.api.text import stream_generate
from tokalign.api.together import batch_generate
from tokalign.errors import CacheError, UsageError
from tokalign.runtime.mlx.cache import ModelCache
from tokalign.runtime.mlx.layers import remembered

TOKENIZER = of_merges(bytes(range(32, 32 + zoo.VOCABULARY)), [])
PROMPT, TURN = [(i * 7 + 3) % zoo.VOCABULARY for i in range(70)], [9, 4, 11]
METHODS: list[dict[str, Any]] = [
    {"method": "plain"},
    {"method": "copy", "num_draft_tokens": 4},
]
ARCHITECTURES = ["gemma3_text", "qwen3_next"]  # windows; recurrent states


def responding(name: str, prompt: list[int], **how: Any) -> Iterator[Any]:
    how = {"max_tokens": 12, "prefill_step_size": 16, **how}
    return stream_generate(zoo.zoo_model(name), TOKENIZER, prompt, **how)


def answered(name: str, prompt: list[int], **how: Any) -> list[int]:
    return [response.token for response in responding(name, prompt, **how)]


@pytest.mark.parametrize("how", METHODS, ids=["plain", "copy"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_interrupted_pass_leaves_a_cache_of_what_was_read(
    name: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between two layers of any pass, of which some have then read more ids."""
    model = zoo.zoo_model(name)
    whole = [*PROMPT, *plainly(model, PROMPT, 12)]
    kind, read = type(model.layers[-1]), type(model.layers[-1]).__call__
    for last in count(0, 3):
        cache, passes = make_prompt_cache(model), iter([*[False] * last, True])

        def interrupted(self: Any, *args: Any, passes: Any = passes, **named: Any) -> Any:
            if self is model.layers[-1] and next(passes, False):
                raise KeyboardInterrupt
            return read(self, *args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "__call__", interrupted)
            try:
                answered(name, PROMPT, prompt_cache=cache, **how)
            except KeyboardInterrupt:
                pass
            else:
                break
        held = remembered(cache)
        assert held is not None
        assert held == whole[: len(held)]
        expected = plainly(model, [*held, *TURN], 12)
        assert answered(name, TURN, prompt_cache=cache, **how) == expected
    assert last > 6


@pytest.mark.parametrize("how", METHODS, ids=["plain", "copy"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_interrupt_while_a_cache_is_left_leaves_it_whole(
    name: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come after the last token, while the cache reads it."""
    model, fill, interrupts = zoo.zoo_model(name), ModelCache._fill, iter([True])
    cache, whole = make_prompt_cache(model), [*PROMPT, *plainly(model, PROMPT, 12)]

    def interrupted(self: ModelCache[Any], ids: list[Any]) -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt
        fill(self, ids)

    monkeypatch.setattr(ModelCache, "_fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answered(name, PROMPT, prompt_cache=cache, **how)
    assert remembered(cache) == whole
    assert answered(name, TURN, prompt_cache=cache, **how) == plainly(model, [*whole, *TURN], 12)


def test_an_interrupted_pass_over_a_text_that_is_not_known_is_told() -> None:
    """mlx-lm has filled the cache, so nobody can read that again."""
    model = zoo.zoo_model("llama")
    cache = make_prompt_cache(model)
    model(mx.array([PROMPT]), cache=cache)
    responses = responding("llama", TURN, prompt_cache=cache, method="plain")
    next(responses)
    layer = model.layers[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(layer), "__call__", lambda *args, **named: 1 / 0)
        with pytest.raises(CacheError, match="not known; make a new one"):
            list(responses)
    with pytest.raises(CacheError, match="make a new cache"):
        responding("llama", TURN, prompt_cache=cache)


@pytest.mark.parametrize("how", METHODS, ids=["plain", "copy"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_generation_that_was_left_ends_where_its_cache_is_gone_on_with(
    name: str, how: dict[str, Any]
) -> None:
    model, cache = zoo.zoo_model(name), make_prompt_cache(zoo.zoo_model(name))
    left = responding(name, PROMPT, prompt_cache=cache, **how)
    taken = [response.token for response in islice(left, 5)]  # and `left` is not closed
    after = answered(name, TURN, prompt_cache=cache, **how)
    assert after == plainly(model, [*PROMPT, *taken, *TURN], 12)
    assert list(left) == []
    again = responding(name, TURN, prompt_cache=cache, **how)
    next(again)
    with pytest.raises(CacheError, match="was copied or left"):
        responding(name, TURN, prompt_cache=deepcopy(cache), **how)
    with pytest.raises(CacheError, match="was copied or left"):
        batch_generate(model, TOKENIZER, [TURN], prompt_caches=[deepcopy(cache)])


def test_responses_that_share_a_cache_are_taken_one_after_the_other() -> None:
    cache = make_prompt_cache(zoo.zoo_model("llama"))
    first, second = (responding("llama", PROMPT, prompt_cache=cache) for _ in range(2))
    assert list(first)
    with pytest.raises(UsageError, match="prompt_cache has changed since it was passed"):
        list(second)
