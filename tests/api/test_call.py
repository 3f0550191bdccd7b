"""Prompt caches of generations that were interrupted, or left while they were under way."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache as cache_calls
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
import zoo
from mlx_lm.models.cache import make_prompt_cache
from random_models import plainly
from small_tokenizers import of_merges

from tokalign import api, runtime
from tokalign.api.text import stream_generate
from tokalign.api.together import batch_generate
from tokalign.errors import CacheError, UsageError
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


def interrupted(at: int, program: Callable[[], Any]) -> bool:
    """Whether Ctrl-C came while a program ran: at one of the lines of the API, the runtime and
    mlx-lm that it comes to, counted from 0."""
    folders = tuple(str(Path(str(part.__file__)).parent) for part in (api, runtime, mlx_lm))
    lines = count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folders):
            return None
        if event == "line" and next(lines) == at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        program()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("how", METHODS, ids=["plain", "copy"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_interrupted_answer_leaves_a_cache_of_what_was_read(
    name: str, how: dict[str, Any]
) -> None:
    """Ctrl-C may come between two layers of any pass, of which some have then read more ids."""
    model = zoo.zoo_model(name)
    whole = [*PROMPT, *plainly(model, PROMPT, 12)]
    after = cache_calls(lambda count: plainly(model, [*whole[:count], *TURN], 12))
    for at in count(0, 2999):
        cache = make_prompt_cache(model)
        if not interrupted(at, partial(answered, name, PROMPT, prompt_cache=cache, **how)):
            break
        held = remembered(cache) or []
        assert held == whole[: len(held)]
        assert answered(name, TURN, prompt_cache=cache, **how) == after(len(held))
    assert at > 6000


@pytest.mark.parametrize("how", METHODS, ids=["plain", "copy"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_interrupt_while_a_cache_is_left_leaves_it_whole(name: str, how: dict[str, Any]) -> None:
    """Ctrl-C may come after the last token, which the cache reads then. Before it begins to, what
    was read remains."""
    model = zoo.zoo_model(name)
    whole = [*PROMPT, *plainly(model, PROMPT, 12)]
    after = {held: plainly(model, [*whole[:held], *TURN], 12) for held in (81, 82)}
    kept = Counter[int]()
    for at in count(0, 149):
        cache = make_prompt_cache(model)
        responses = responding(name, PROMPT, prompt_cache=cache, **how)
        assert [next(responses).token for _ in range(12)] == whole[len(PROMPT) :]
        came = interrupted(at, partial(next, responses, None))
        held = remembered(cache)
        assert held is not None
        assert held in (whole, whole[:-1])
        assert answered(name, TURN, prompt_cache=cache, **how) == after[len(held)]
        kept[len(held)] += 1
        if not came:
            break
    assert kept[82] > 1


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
