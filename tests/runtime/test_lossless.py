"""Real models with two tokenizers: every drafter and translation emits the target's own output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import mlx.core as mx
import pytest
from random_models import decoder_of, emitted, random_model
from small_tables import half_right, table_of

from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.generate import Generation
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Array, Round
from tokalign.tables.dictionary import Dictionaries
from tokalign.tokenizer.tokenizer import Tokenizer

ModelPair: TypeAlias = tuple[LanguageModel[Any], LanguageModel[Any]]
PROMPTS = ("Wczoraj rano", "Napisz: „żółw 🐟”, potem def f(x):\n    return")
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=4)}


@pytest.fixture(scope="module")
def plain_output(demo_pair: ModelPair) -> Callable[[str, str], list[int]]:
    """The ids of plain decoding for a sampling and a prompt, each computed once."""
    return cache(lambda sampling, prompt: emit(demo_pair, sampling, prompt, method="plain"))


def emit(pair: ModelPair, sampling: str, prompt: str, **how: Any) -> list[int]:
    decoder = decoder_of(pair, **how)
    request = Request(
        decoder.prompt(prompt, use_template=False),
        max_tokens=24,
        sampler=SAMPLINGS[sampling],
    )
    return emitted(Generation(decoder, request))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("method", "translation", "knowing"),
    [
        ("copy", "none", 0),
        ("draft", "context:5", 0),
        ("draft", "intersection", 0),
        ("draft", "exact", 0),
        ("hybrid", "exact", 0),
        ("dictionary", "none", 1),
        ("copy", "none", 1),
        ("hybrid", "exact", 1),
        ("dictionary", "none", 2),
        ("hybrid", "exact", 2),
    ],
)
@pytest.mark.slow
def test_the_demo_pair_is_lossless(
    demo_pair: ModelPair,
    plain_output: Callable[[str, str], list[int]],
    sampling: str,
    method: str,
    translation: str,
    knowing: int,
) -> None:
    """knowing: how many dictionaries, and an earlier output, know parts of the output."""
    for prompt in PROMPTS:
        plain = plain_output(sampling, prompt)
        size = len(demo_pair[0].tokenizer.vocabulary)
        how = half_right(plain, size) if knowing else {"num_draft_tokens": 3}
        if knowing == 2:
            [known] = how["dictionary"].by_source.values()
            both = {"dictionary:a": known, "dictionary:b": table_of({}, size)}
            how["dictionary"] = Dictionaries(both)
        how |= {"method": method, "translation": translation}
        assert emit(demo_pair, sampling, prompt, **how) == plain


# -- text that is hard to translate: nothing crashes, nothing is lost ------------------------------

OPENING = "Zapytałem: „co dalej?”"
SCRIPT = (
    " Karp 🐟 i 👩\u200d👧 w Łodzi;  日本語, Привіт.\n\tdef f(x):\n\t\treturn x ** 2  # żółć\n\n"
    "\x00\x07 e\u0301 koniec, a\u00a0potem\u2003nic…"
)


class Scripted:
    """A model that emits a script from a position on, whatever its weights say.

    Emoji, mixed scripts, code, bytes that no piece spells, the target's own words letter by letter,
    tool calls and think tags, ends of turns in the middle.
    """

    def __init__(self, model: Any, script: Sequence[int], begin: int) -> None:
        self._model, self._script, self._begin = model, [*script], begin
        self.args, self.layers = model.args, model.layers

    def __call__(self, ids: Array, cache: Any) -> Array:
        at = cache[0].offset + 1 - self._begin
        logits = self._model(ids, cache=cache)
        said = [*[0] * max(0, -at), *self._script[max(0, at) :]][: ids.shape[1]]
        said += [0] * (ids.shape[1] - len(said))
        return logits + 200.0 * (mx.arange(logits.shape[-1]) == mx.array(said)[:, None])


def script_of(tokenizer: Tokenizer[Any]) -> list[int]:
    """The script in ids that the target may well emit, canonical or not, and a last stop id."""
    vocabulary = tokenizer.vocabulary
    stop = min(vocabulary.roles.eos)
    inside = [i for i in vocabulary.specials if i != stop][:5]
    for spelling in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        inside += [vocabulary.special_ids[spelling]] if spelling in vocabulary.special_ids else []
    letters = [vocabulary.id_of[bytes([byte])] for byte in b" Krakowska"]
    words = tokenizer.bpe.encode(" i jeszcze coś".encode())
    ids = [*tokenizer.bpe.encode(SCRIPT.encode()), *letters, *words]
    for special in inside:
        ids += [special, words[0]]
    return [*ids, *letters[:3], inside[0], inside[-1], *words, stop]


def play(pair: ModelPair, translation: str, sampling: Sampling) -> list[int]:
    """The script, which is emitted whatever is drafted."""
    target, draft = pair
    prompt, script = target.tokenizer.encode(OPENING), script_of(target.tokenizer)
    stop = frozenset({script[-1]})
    scripted = Scripted(target.model, script, len(prompt))
    how = {"method": "draft", "translation": translation, "num_draft_tokens": 3, "alternatives": 0}
    decoder = decoder_of((replace(target, model=scripted, stop_ids=stop), draft), **how)
    request = Request(Prompt(target=prompt), max_tokens=len(script) + 9, sampler=sampling)
    decoding = decoder.begin(request)
    context, events = decoding.context, iter(decoding)
    drafted = [event for event in events if isinstance(event, Round) and event.tree]
    assert list(context.emitted) == script
    assert drafted
    return script


@pytest.mark.parametrize(
    ("how", "translation"),
    [
        ("greedy", "context:5"),
        ("sampled", "exact"),
        pytest.param("greedy", "intersection", marks=pytest.mark.long),
        pytest.param("greedy", "exact", marks=pytest.mark.long),
        pytest.param("sampled", "intersection", marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_the_demo_pair_emits_the_script(demo_pair: ModelPair, translation: str, how: str) -> None:
    sampling = Sampling() if how == "greedy" else Sampling(temperature=0.8)
    script = play(demo_pair, translation, sampling)
    fallback = demo_pair[0].tokenizer.vocabulary.fallback
    assert len([i for i in script if i in fallback]) > 20
    assert {0, 1, 3} < set(script)


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "translation"),
    [("bielik-qwen", "intersection"), ("bielik-qwen", "exact"), ("qwen-bielik", "exact")],
)
def test_official_tokenizers_emit_the_script(
    request: pytest.FixtureRequest, names: str, translation: str
) -> None:
    """The draft models are random: every proposal is noise, special tokens included."""
    tokenizers = [request.getfixturevalue(name) for name in names.split("-")]
    target, draft = (
        LanguageModel(
            model=random_model(seed, vocabulary=len(tokenizer.vocabulary), heads=1),
            tokenizer=tokenizer,
        )
        for seed, tokenizer in enumerate(tokenizers)
    )
    script = play((target, draft), translation, Sampling())
    assert any(i in tokenizers[0].vocabulary.specials for i in script[:-1])
