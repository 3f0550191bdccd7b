"""Wrong arguments of the Python API: an error that names the argument, before any pass.

Every attack is one case. After it the same model has to give what it gave before, and nothing may
have been computed with it until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from random_models import random_model
from small_tokenizers import trained_tokenizer

import tokalign
from tokalign.errors import UsageError
from tokalign.runtime.mlx.sampling import Sampling

PROMPT = [5, 17, 3]
SIZE = 400
"""Ids of the target model; its tokenizer has fewer."""


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    return {
        "model": random_model(6, vocabulary=SIZE),
        "tokenizer": trained_tokenizer(340),
        "draft_model": random_model(7, vocabulary=SIZE),
        "draft_tokenizer": trained_tokenizer(300),
    }


@pytest.fixture(scope="module")
def expected(pair: dict[str, Any]) -> list[int]:
    return stream(pair, method="plain")


def stream(pair: dict[str, Any], **how: Any) -> list[int]:
    arguments = {"prompt": PROMPT, "max_tokens": 6, **pair, **how}
    return [response.token for response in tokalign.stream_generate(**arguments)]


def step(pair: dict[str, Any], **how: Any) -> list[int]:
    models = {name: pair[name] for name in ("model", "draft_model")}
    arguments = {"prompt": PROMPT, "max_tokens": 6, **models, **how}
    return [token for token, _, _ in tokalign.speculative_generate_step(**arguments)]


def broken() -> Iterator[int]:
    yield 5
    yield "6"  # type: ignore[misc]


BOTH: dict[str, list[Any]] = {
    "prompt": [
        *(None, 5, b"W", [], [5, "6"], [5, 6.0], [5, True], [5, -1], [5, SIZE], [1 << 70]),
        *(mx.array([5.0]), mx.array([[5]])),
    ],
    "model": [None, "model", (1, 2), object()],
    "draft_model": ["model", (1, 2)],
    "tokenizer": [5, object(), {}, ""],
    "draft_tokenizer": [5, object(), {}, ""],
    "translation": [5, "", "best", "context:0", ["a"]],
    "num_draft_tokens": ["3", 3.0, -1, True],
    "max_tokens": [None, "6", 6.0, True, -2],
    "sampler": [5, "greedy", Sampling()],
    "logits_processors": [5, "x", [5], [None]],
    "prompt_cache": [5, "x", {}, [None] * 4],
    "prefill_step_size": [None, "512", 0, -1, 512.0, True],
    "kv_bits": ["4", 0, 7, 9, 4.0, True],
    "kv_group_size": [None, "64", 0, -64],
    "quantized_kv_start": [None, -1, 0.5],
    "stream": [5, "gpu"],
}
STREAM: dict[str, list[Any]] = {
    "prompt": [
        *(5.0, "", [5, None], [5, 1 << 31], [[5, 6]], object(), broken(), "\ud800"),
        *(mx.array(5), mx.array([SIZE]), np.array([5.5]), np.array([[5]]), np.array(["5"])),
        *(np.array([-1]), np.array([True])),
    ],
    "draft_prompt": [5, b"W", [5, -1], [5, SIZE], [5, "6"], "\ud800", object()],
    "max_tokens": [0, [6], float("inf")],
    "model": [5, lambda ids: ids],
    "draft_model": [5, lambda ids: ids],
    "tokenizer": [None, b"x"],
    "draft_tokenizer": [None, b"x"],
    "method": [None, 5, "", "Draft", ["draft"], "draft\n"],
    "translation": ["context:", "context:-1"],
    "num_draft_tokens": [[3]],
    "alternatives": [None, "2", 2.0, -1, True, 1 << 40],
    "dictionary": [5, b"x", True, [5], iter(["pl.dictionary.tok"])],
    "alignment": [5, b"x", True, ["x"]],
    "language": [5, b"pl", ["pl", 5], "pl,,en", iter(["pl"])],
    "remember": [1],
    "sampling": [0.7, "greedy", {"temperature": 1}, Sampling],
    "sampler": [[]],
    "logits_processors": [{"a": 1}, lambda ids, row: row, iter([lambda ids, row: row])],
    "stop": [None, 5, b"x", [5], "", ["a", ""], [None], "\ud800", ["\ud800"], iter(["a"])],
    "max_kv_size": [0, -1, 7, 2.5, "64", True],
    "prompt_progress_callback": [5, "x", []],
    "prompt_cache": [[1, 2], [None]],
    "input_embeddings": [5, "x", mx.zeros((2,)), mx.zeros((2, 32))],
    "session": [5, b"x", ["x"]],
    "note": [None, "note", 5],
    "stream": [object()],
}
STEP: dict[str, list[Any]] = {
    "prompt": ["Wisła"],
    "draft_model": [None, object()],
    "num_draft_tokens": [None],
    "prompt_cache": [[], make_prompt_cache],
    "quantized_kv_start": ["0", 0.0, True],
}
ATTACKS = {
    f"{call.__name__}-{name}-{number}": (call, name, bad)
    for call, own in ((stream, STREAM), (step, STEP))
    for name in {**BOTH, **own}
    for number, bad in enumerate([*BOTH.get(name, []), *own.get(name, [])])
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_wrong_argument_is_named_before_any_pass(
    pair: dict[str, Any], expected: list[int], attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, name, bad = ATTACKS[attack]
    how = {name: bad}
    if call is step and name in ("tokenizer", "draft_tokenizer", "translation"):
        how = {"tokenizer": pair["tokenizer"], "draft_tokenizer": pair["draft_tokenizer"], **how}
    with monkeypatch.context() as patch:
        patch.setattr(type(pair["model"]), "__call__", lambda *_, **__: pytest.fail("a pass"))
        with pytest.raises(UsageError, match=name.replace("_", ".")) as caught:
            call(pair, **how)
    assert isinstance(caught.value, ValueError), "callers of mlx-lm's functions catch it so"
    assert str(caught.value).isprintable()
    assert stream(pair, num_draft_tokens=2, method="draft", max_tokens=2) == expected[:2]


@pytest.mark.parametrize("call", [stream, step])
@pytest.mark.parametrize(
    "prompt",
    [
        lambda: tuple(PROMPT),
        lambda: iter(PROMPT),
        lambda: range(3, 9),
        lambda: np.array(PROMPT),
        lambda: np.array(PROMPT, dtype=np.uint16),
        lambda: [np.int64(5), 17, np.uint8(3)],
        lambda: mx.array(PROMPT),
        lambda: mx.array(PROMPT, dtype=mx.uint8),
        lambda: [5, SIZE - 1],
    ],
)
def test_ids_of_any_kind_are_ids(
    pair: dict[str, Any], call: Callable[..., list[int]], prompt: Callable[[], Any]
) -> None:
    given, ids = prompt(), [int(i) for i in prompt()]
    assert call(pair, prompt=given) == call(pair, prompt=ids)


@pytest.mark.parametrize(
    "how",
    [
        {"max_tokens": np.int32(6)},
        {"num_draft_tokens": np.int64(2)},
        {"alternatives": np.uint8(1)},
        {"stop": ("never so",)},
        {"sampling": Sampling(temperature=np.float32(0))},
        {"sampler": lambda logprobs: mx.argmax(logprobs, axis=-1)},
        {"logits_processors": [lambda ids, row: row]},
        {"prefill_step_size": np.int64(16)},
        {"session": "żółw"},
    ],
    ids=lambda how: next(iter(how)),
)
def test_what_is_right_goes_on_working(
    pair: dict[str, Any], expected: list[int], how: dict[str, Any]
) -> None:
    assert stream(pair, **how) == expected
