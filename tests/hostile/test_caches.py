"""Prompt caches that others touch between our calls: every step equals a fresh run.

A random walk goes over one cache: our calls, mlx-lm's calls, copies, trims, saves and loads in any
order. It keeps the true history itself. After every step both kinds of calls are asked what comes
next, and again with a repetition penalty that judges all of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    KVCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.sample_utils import make_logits_processors

import tokalign
from tokalign.runtime.decoder import LanguageModel

STEPS, PROBED, SEEDS = 25, 6, range(3)
PENALTY = {"repetition_penalty": 1.7, "repetition_context_size": 10_000}
KINDS: dict[str, Callable[[], Any]] = {
    "KVCache": KVCache,
    "RotatingKVCache": lambda: RotatingKVCache(max_size=4096, keep=4),
}
METHODS: list[dict[str, Any]] = [
    {"method": "plain"},
    {"method": "copy"},
    {"method": "copy", "num_draft_tokens": 4},
    {},
]


@pytest.fixture(scope="module")
def target(demo_pair: tuple[LanguageModel[Any], Any]) -> LanguageModel[Any]:
    return demo_pair[0]


def fresh(model: Any, ids: list[int], count: int = PROBED, **how: Any) -> list[int]:
    """What mlx-lm gives after these ids."""
    steps = generate_step(mx.array(ids), model, max_tokens=count, **how)
    return [int(token) for token, _ in steps]


def penalty() -> list[Any]:
    return list(make_logits_processors(**PENALTY))


class Walk:
    """A cache, and the ids that it truly holds. touched: whether others wrote into it."""

    def __init__(
        self, target: LanguageModel[Any], kind: Callable[[], Any], seed: int, folder: Path
    ) -> None:
        self.target, self.model, self.random = target, target.model, Random(seed)
        self.cache = [kind() for _ in self.model.layers]
        self.text: list[int] = []
        self.touched = False
        self.file = folder / "cache.safetensors"

    def step(self) -> str:
        steps = [self.ours, self.ours, self.theirs, self.trim, self.replace, self.copy]
        chosen = self.random.choice([*steps, self.save_as_mlx_lm_does])
        chosen()
        return chosen.__name__

    def ours(self) -> None:
        new, count = self.draw(), self.random.randint(1, 8)
        responses = self.respond(new, self.cache, max_tokens=count, **self.random.choice(METHODS))
        got = [one.token for one in islice(responses, self.random.randint(1, count))]
        responses.close()  # type: ignore[attr-defined]
        assert got == fresh(self.model, [*self.text, *new], count)[: len(got)]
        self.text += [*new, *got]

    def theirs(self, new: list[int] | None = None, count: int = 2) -> None:
        new = self.draw() if new is None else new
        steps = generate_step(mx.array(new), self.model, prompt_cache=self.cache, max_tokens=count)
        self.text += [*new, *[int(token) for token, _ in steps]]
        del self.text[self.cache[0].offset :]
        self.touched = True

    def trim(self) -> None:
        count = self.random.randint(0, 9)
        trim_prompt_cache(self.cache, count)
        self.text = self.text[: max(0, len(self.text) - count)]

    def replace(self) -> None:
        """The last ids by as many others."""
        count = min(self.random.randint(1, 9), len(self.text))
        if count:
            trim_prompt_cache(self.cache, count)
            del self.text[-count:]
            self.theirs(self.draw(count), 0)

    def copy(self) -> None:
        self.cache = deepcopy(self.cache)

    def save_as_mlx_lm_does(self) -> None:
        if self.text:
            save_prompt_cache(str(self.file), self.cache)
            self.cache = load_prompt_cache(str(self.file))
            self.touched = True

    def check(self) -> None:
        assert {layer.offset for layer in self.cache} == {len(self.text)}
        new = self.draw()
        how = {**self.random.choice(METHODS), "max_tokens": PROBED}
        history = [*self.text, *new]
        found = [one.token for one in self.respond(new, deepcopy(self.cache), **how)]
        assert found == fresh(self.model, history)[: len(found)]
        notes: list[str] = []
        responses = self.respond(
            new, deepcopy(self.cache), logits_processors=penalty(), note=notes.append, **how
        )
        found = [one.token for one in responses]
        if any("ids are not known" in note for note in notes):
            assert self.touched
            theirs = {"prompt_cache": deepcopy(self.cache), "logits_processors": penalty()}
            assert found == fresh(self.model, new, **theirs)[: len(found)]
        else:
            assert found == fresh(self.model, history, logits_processors=penalty())[: len(found)]

    def respond(self, new: list[int], cache: list[Any], **how: Any) -> Iterator[Any]:
        return tokalign.stream_generate(
            self.model, self.target.tokenizer, new, prompt_cache=cache, **how
        )

    def draw(self, count: int | None = None) -> list[int]:
        count = self.random.randint(1, 12) if count is None else count
        return [self.random.randrange(300, 4000) for _ in range(count)]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=pytest.mark.long if seed else [])
        for kind, seed in product(KINDS, SEEDS)
    ],
)
def test_a_walk_over_a_cache_equals_fresh_runs(
    target: LanguageModel[Any], tmp_path: Path, kind: str, seed: int
) -> None:
    walk = Walk(target, KINDS[kind], seed, tmp_path)
    taken = []
    for _ in range(STEPS):
        taken.append(walk.step())
        try:
            walk.check()
        except AssertionError as error:
            raise AssertionError(f"after {', '.join(taken)}") from error
