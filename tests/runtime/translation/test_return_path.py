"""Whole generations of text that is hard to translate: nothing crashes, nothing is lost.

The target is made to say a script: emoji, mixed scripts, code, bytes that no piece spells, its own
words letter by letter, tool calls and think tags, ends of turns in the middle. In every round the
draft model must read exactly the committed text, encoded as if it were encoded at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from random_models import random_model

from tokalign.build.alignment import align
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder, LanguageModel
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.loop import Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.options import DraftingOptions
from tokalign.runtime.rounds import Array, Round
from tokalign.runtime.translation.committed_text import map_specials
from tokalign.tokenizer.tokenizer import Tokenizer

OPENING = "Zapytałem: „co dalej?”"
SCRIPT = (
    " Karp 🐟 i 👩\u200d👧 w Łodzi;  日本語, Привіт.\n\tdef f(x):\n\t\treturn x ** 2  # żółć\n\n"
    "\x00\x07 e\u0301 koniec, a\u00a0potem\u2003nic…"
)


class Scripted:
    """A model that emits a script from a position on, whatever its weights say."""

    def __init__(self, model: Any, script: Sequence[int], begin: int) -> None:
        self._model, self._script, self._begin = model, [*script], begin
        self.args, self.layers = model.args, model.layers

    def __call__(self, ids: Array, cache: Any) -> Array:
        at = cache[0].offset + 1 - self._begin
        logits = self._model(ids, cache=cache)
        said = [*[0] * max(0, -at), *self._script[max(0, at) :]][: ids.shape[1]]
        said += [0] * (ids.shape[1] - len(said))
        return logits + 200.0 * (mx.arange(logits.shape[-1]) == mx.array(said)[:, None])


class Listening(DraftModelSession):
    """A draft model's session that remembers the contexts it was asked about."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.asked: list[list[int]] = []

    def logits(self, ids: Sequence[int], last: int = 1) -> Array:
        self.asked.append(list(ids))
        return super().logits(ids, last)


def encoded_at_once(pair: tuple[Tokenizer[Any], Tokenizer[Any]], ids: Sequence[int]) -> list[int]:
    """What the draft has to read after its own opening: each stretch of text as a whole."""
    target, draft = pair
    specials, out, text = map_specials(target, draft), [], b""
    at_start = True

    def flush() -> list[int]:
        padded = b" " + text if text and draft.spec.dummy_prefix else text
        return draft.bpe.encode(padded)

    for token in ids:
        data = target.vocabulary.tokens[token]
        if data:
            text += data.removeprefix(b" ") if at_start and target.spec.dummy_prefix else data
            at_start = False
            continue
        at_start = True
        if token in specials:
            out += [*flush(), specials[token]]
            text = b""
        else:
            text += target.vocabulary.specials[token].encode()
    return [*out, *flush()]


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


def play(
    target: tuple[Any, Tokenizer[Any]],
    draft: tuple[Any, Tokenizer[Any]],
    translation: str,
    sampling: Sampling,
) -> tuple[list[int], list[int], Listening]:
    """The script, what was emitted, and the draft's session; contexts are checked on the way."""
    (model, ours), (own_model, own) = target, draft
    prompt, script = ours.encode(OPENING), script_of(ours)
    stop = frozenset({script[-1]})
    table = align(own.vocabulary, ours.vocabulary)
    decoder = Decoder(
        target=LanguageModel(
            model=Scripted(model, script, len(prompt)), tokenizer=ours, stop_ids=stop
        ),
        draft=LanguageModel(model=own_model, tokenizer=own),
        drafting=Drafting(
            options=DraftingOptions(
                method="draft", translation=translation, num_draft_tokens=3, alternatives=0
            ),
            alignment=lambda: table,
        ),
        sampler=sampling,
    )
    session = Listening(own_model)
    limits = Limits(max_tokens=len(script) + 9, stop_ids=stop)
    context, events = decoder.run(Prompt(target=prompt), limits, draft=session)
    opening = list(own.spec.opening)
    for event in events:
        if isinstance(event, Round):
            if event.limit and translation in CANONICAL:
                before = context.ids[: len(context.ids) - len(event.emitted)]
                assert session.asked[0] == [*opening, *encoded_at_once((ours, own), before)]
            session.asked.clear()
    return script, list(context.emitted), session


CANONICAL = ("intersection", "exact")


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
def test_the_demo_pair_emits_the_script(demo_pair: Any, translation: str, how: str) -> None:
    target, draft = ((one.model, one.tokenizer) for one in demo_pair)
    sampling = Sampling() if how == "greedy" else Sampling(temperature=0.8)
    script, emitted, _ = play(target, draft, translation, sampling)
    assert emitted == script
    fallback = target[1].vocabulary.fallback
    assert len([i for i in emitted if i in fallback]) > 20
    assert {0, 1, 3} < set(emitted)


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "translation"),
    [("bielik-qwen", "intersection"), ("bielik-qwen", "exact"), ("qwen-bielik", "exact")],
)
def test_official_tokenizers_emit_the_script(
    request: pytest.FixtureRequest, names: str, translation: str
) -> None:
    """The draft models are random: every proposal is noise, special tokens included."""
    ours, own = (request.getfixturevalue(name) for name in names.split("-"))
    models = [
        random_model(seed, vocabulary=len(tokenizer.vocabulary), heads=1)
        for seed, tokenizer in enumerate((ours, own))
    ]
    script, emitted, _ = play((models[0], ours), (models[1], own), translation, Sampling())
    assert emitted == script
    assert any(i in ours.vocabulary.specials for i in emitted[:-1])
