"""Generations that run at the same time on one pair of models give what each gives alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from threading import Barrier
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from places import DEMO

import tokalign
from tokalign.runtime.chat import encode_prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.sampling import Sampling

TOKENS = 12
PROMPTS = ("Wisła jest", "Najstarsze miasto", "Rzeka płynie przez", "W lesie rośnie")


class Models(NamedTuple):
    """The demo pair, its weights not yet evaluated when the first threads use them."""

    target: LanguageModel[Any]
    draft: LanguageModel[Any]


def load() -> Models:
    folders = (DEMO / "target", DEMO / "draft")
    return Models(*[LanguageModel.from_folder(folder, dtype="float32") for folder in folders])


def tokens(models: Models, prompt: str, **options: Any) -> Iterator[int]:
    """The ids of a generation with the draft model."""
    for response in tokalign.stream_generate(
        models.target.model,
        models.target.tokenizer,
        prompt,
        draft_model=models.draft.model,
        draft_tokenizer=models.draft.tokenizer,
        max_tokens=TOKENS,
        **options,
    ):
        yield response.token


def mlx_lms(models: Models, prompt: str) -> Iterator[int]:
    """mlx-lm's own plain decoding on the same model."""
    ids = mx.array(encode_prompt(models.target.tokenizer, prompt))
    for token, _ in generate_step(ids, models.target.model, max_tokens=TOKENS):
        yield int(token)


KINDS: dict[str, Callable[[Models, str], Iterator[int]]] = {
    "tree": lambda m, p: tokens(m, p, method="draft", num_draft_tokens=3),
    "chain": lambda m, p: tokens(m, p, method="draft", num_draft_tokens=3, alternatives=0),
    "plain": lambda m, p: tokens(m, p, method="plain"),
    "auto": lambda m, p: tokens(m, p),
    "hybrid": lambda m, p: tokens(m, p, method="hybrid", num_draft_tokens=2),
    "sampled": lambda m, p: tokens(
        m, p, method="draft", num_draft_tokens=3, sampling=Sampling(temperature=0.8, seed=7)
    ),
    "session": lambda m, p: tokens(m, p, num_draft_tokens=2, session="threads"),
    "mlx-lm": mlx_lms,
}


@pytest.mark.parametrize(("threads", "each"), [(4, 5), pytest.param(8, 18, marks=pytest.mark.long)])
def test_generations_of_many_threads_are_those_of_one(threads: int, each: int) -> None:
    jobs = [(kind, prompt) for prompt in PROMPTS for kind in KINDS][: threads * each]
    apart = load()
    alone = {(kind, prompt): list(KINDS[kind](apart, prompt)) for kind, prompt in jobs}
    models, start = load(), Barrier(threads)

    def work(thread: int) -> list[str]:
        start.wait()
        wrong = []
        for kind, prompt in islice(cycle(jobs), thread * 5, thread * 5 + each):
            if list(KINDS[kind](models, prompt)) != alone[kind, prompt]:
                wrong.append(f"{kind}: {prompt}")
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        assert [wrong for wrongs in pool.map(work, range(threads)) for wrong in wrongs] == []
    for kind, prompt in jobs[: len(KINDS)]:
        assert list(KINDS[kind](models, prompt)) == alone[kind, prompt], "afterwards"


@pytest.mark.parametrize("left", ["tree", "mlx-lm"])
def test_a_generator_left_half_way_disturbs_nobody(left: str) -> None:
    models = load()
    first, second = KINDS[left](models, PROMPTS[0]), KINDS["tree"](models, PROMPTS[1])
    begun = [next(first), next(second), next(first)]
    expected = list(KINDS["plain"](models, PROMPTS[0])), list(KINDS["plain"](models, PROMPTS[1]))
    assert begun == [expected[0][0], expected[1][0], expected[0][1]]
    first.close()  # type: ignore[attr-defined]
    assert [begun[1], *second] == expected[1]
    assert list(mlx_lms(models, PROMPTS[0])) == expected[0]
