"""The law of kept contexts: every turn gives what a fresh run on the whole conversation gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from block_drafters import random_block_drafter
from eagle_drafters import eagle_config, random_eagle
from random_drafters import random_drafter
from random_models import emitted

from tokalign.api.assemble import assemble
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampler, Sampling
from tokalign.runtime.mlx.trained_drafter import TrainedDrafter
from tokalign.runtime.options import CacheOptions, DraftingOptions
from tokalign.runtime.request import Request
from tokalign.tokenizer.vocabulary import TargetId

TURNS, MOST_TOKENS = 5, 12
ROOM = 256 - MOST_TOKENS


Models = tuple[LanguageModel[Any], LanguageModel[Any]]
"""The target and a draft model of another tokenizer."""


class Conversation:
    """Sessions and a logit store that last from turn to turn, as `tokalign chat` keeps them."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.logits = decoder, decoder.drafting.with_stores().logits
        self.target = decoder.open_target()
        self.draft = decoder.open_draft()

    def generate(
        self,
        ids: list[TargetId],
        most: int = 8,
        sampler: Sampler = Sampling(),  # noqa: B008
    ) -> Generation:
        prompt = Prompt(target=ids)
        request = Request(prompt, max_tokens=most, sampler=sampler, logits=self.logits)
        return Generation(
            self.decoder, request, target_session=self.target, draft_session=self.draft
        )


@pytest.fixture(scope="module")
def pair(models: dict[str, str]) -> Models:
    return (
        LanguageModel.from_folder(Path(models["target"])),
        LanguageModel.from_folder(Path(models["draft"])),
    )


DRAFTERS: tuple[Callable[[Any], TrainedDrafter], ...] = (
    random_drafter,
    random_block_drafter,
    lambda model: random_eagle(model, eagle_config(model)),
)


def some_decoder(pair: Models, draw: Random) -> Decoder:
    """One of the ways to decode: with a drafter of any kind or with none, greedy or sampled."""
    method = draw.choice(["plain", "copy", "draft", "auto", "auto", "drafter"])
    draft = draw.choice(pair) if method in ("draft", "auto") else None
    options = DraftingOptions(
        method="plain" if method == "drafter" else method,
        num_draft_tokens=None if method == "auto" else draw.choice([2, 4]),
    )
    cache = CacheOptions(prefill_step_size=draw.choice([7, 2048]))
    decoder = assemble(pair[0], draft, options, cache=cache)
    if method == "drafter":
        alone, with_all = {"method": "drafter"}, {"method": "hybrid", "draft_rows": 5}
        drafting = decoder.drafting.with_options(**draw.choice([alone, with_all]))
        drafter = draw.choice(DRAFTERS)(pair[0].model)
        return replace(decoder, drafter=drafter, drafting=drafting)
    return decoder


def some_ids(draw: Random, pair: Models, most: int) -> list[TargetId]:
    """A text of the user; now and then it repeats itself, so that there is something to copy."""
    size = len(pair[0].tokenizer.vocabulary)
    ids = [TargetId(draw.randrange(1, size)) for _ in range(draw.randint(1, most))]
    return ids * draw.choice([1, 1, 2])


def next_prompt(
    draw: Random, pair: Models, prompt: list[TargetId], answer: list[TargetId]
) -> list[TargetId]:
    """What the user does next: go on, try again, edit what was said, or begin anew."""
    whole = prompt + answer
    match draw.choice(["go on", "go on", "rewritten", "retry", "edit", "reset", "cut"]):
        case "go on":
            found = whole + some_ids(draw, pair, 20)
        case "rewritten":  # a template writes the end of the last turn in another way
            found = whole[: -draw.randint(1, 3)] + some_ids(draw, pair, 20)
        case "retry":
            found = prompt
        case "edit":
            place = draw.randrange(len(whole))
            found = whole[:place] + some_ids(draw, pair, 3) + whole[place + 1 :]
        case "cut":
            found = whole[: draw.randint(1, len(whole))]
        case _:
            found = some_ids(draw, pair, 40)
    return found[:ROOM]


def conversation(seed: int, pair: Models) -> Iterator[tuple[list[int], list[int]]]:
    """The ids of every turn: with what was kept, and of a fresh run."""
    draw = Random(seed)
    decoder = some_decoder(pair, draw)
    kept, temperature = Conversation(decoder), draw.choice([0.0, 0.8])
    prompt = some_ids(draw, pair, 40)
    for _ in range(TURNS):
        sampler = Sampling(temperature=temperature, seed=draw.randrange(1000))
        most = draw.randint(1, MOST_TOKENS)
        turn = kept.generate(prompt, most, sampler)
        request = Request(Prompt(target=prompt), max_tokens=most, sampler=sampler)
        fresh = Generation(decoder, request)
        expected, rounds = emitted(fresh), turn.by_round()
        interrupted_after = draw.choice([1, 2, 100, 100, 100])
        for count, _ in enumerate(rounds, 1):
            if count == interrupted_after:
                break
        answer = list(turn.context.emitted)
        assert answer or turn.reading is not None, "a step of reading may be the last"
        yield answer, expected if count < interrupted_after else expected[: len(answer)]
        prompt = next_prompt(draw, pair, prompt, answer)


SEEDS = [*range(16), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1000, 1200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_turn_is_that_of_a_fresh_run(pair: Models, seed: int) -> None:
    """With edits, retries, resets, rewritten ends and interrupts; drafts of two vocabularies."""
    for answer, expected in conversation(seed, pair):
        assert answer == expected


def computed_by(session: Any) -> list[int]:
    """How many ids go through the model of a session, pass by pass, from now on."""
    forward, sizes = session.forward, list[int]()

    def counted(tokens: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(tokens.size)
        return forward(tokens, *rest, **named)

    session.forward = counted
    return sizes


def test_only_what_is_new_is_computed(pair: Models) -> None:
    """Counted in ids: the new part of the prompt, and the output."""
    decoder = assemble(pair[0], None, DraftingOptions(method="plain"))
    kept, prompt = Conversation(decoder), [TargetId(i) for i in range(5, 65)]
    sizes = computed_by(kept.target)
    for _ in range(3):
        held = len(kept.target.held)
        turn = kept.generate(prompt)
        new = len(prompt) - held + len(emitted(turn))
        assert sum(sizes) <= new + 1
        sizes.clear()
        prompt = [*turn.context.ids, *(TargetId(i) for i in (9, 8, 7))]
    assert len(prompt) > 80


def test_the_draft_model_also_keeps_its_context(pair: Models) -> None:
    options = DraftingOptions(method="draft", num_draft_tokens=3)
    decoder = assemble(*pair, options)
    kept, prompt = Conversation(decoder), [TargetId(i) for i in range(5, 155)]
    assert kept.draft is not None
    sizes, computed = computed_by(kept.draft), []
    for _ in range(3):
        emitted(turn := kept.generate(prompt))
        computed.append(sum(sizes))
        sizes.clear()
        prompt = [*turn.context.ids, TargetId(9), TargetId(8)]
    assert computed[0] > 150 > 2 * max(computed[1:])
