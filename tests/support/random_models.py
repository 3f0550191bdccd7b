"""Tiny random models and tokenizers, made in milliseconds, for tests of the decode loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.llama import Model, ModelArgs
from small_tokenizers import write_tokenizer

from tokalign.build.alignment import align
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.drafting import Drafting
from tokalign.runtime.generate import Generation
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, RowStore
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

VOCABULARY = 96

_OPENED = ("dictionary", "outputs", "known_rows")


@cache
def random_model(
    seed: int = 0,
    *,
    vocabulary: int = VOCABULARY,
    heads: int = 4,
    layers: int = 2,
    sliding_window: int | None = None,
) -> Any:
    """A float32 Llama whose most probable next token depends on the context."""
    arguments = ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=layers,
        intermediate_size=48,
        num_attention_heads=heads,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        sliding_window=sliding_window,
        layer_types=None if sliding_window is None else ["sliding_attention", "full_attention"],
    )
    mx.random.seed(seed)
    model = Model(arguments)
    model.update(tree_map(_random, model.parameters()))
    model.model.embed_tokens.weight = mx.random.normal((vocabulary, 32))
    mx.eval(model.parameters())
    return model


def _random(weight: mx.array) -> mx.array:
    """Weights large enough that greedy output does not repeat one token."""
    return mx.random.normal(weight.shape) * 1.5 / weight.shape[-1] ** 0.5


def write_model(
    folder: Path,
    *,
    vocabulary_size: int,
    seed: int = 0,
    make: Callable[[int, int], Any] = lambda size, seed: random_model(seed, vocabulary=size),
) -> Path:
    """A model folder as mlx-lm loads it, with a tokenizer of its own; returns the folder.

    make: a model with so many ids, for a seed.
    """
    write_tokenizer(folder, vocabulary_size=vocabulary_size)
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    model = make(size, seed)
    model.save_weights(str(folder / "model.safetensors"))
    config = {k: v for k, v in vars(model.args).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


class WildDrafter(Drafter):
    """An adversary: chains, and trees if it may, of ids that are right more often than not.

    right: the ids that will be emitted, as far as they are known. ids: wrong ones are below it.
    """

    def __init__(
        self, right: Sequence[int] = (), *, trees: bool = False, ids: int = 64, seed: int = 1
    ) -> None:
        self._right, self._trees, self._ids = right, trees, ids
        self._random = Random(seed)

    def propose(self, context: Context, limit: int) -> Proposal:
        random = self._random
        if random.random() < 0.15:
            return Proposal(run_ahead=random.random() < 0.5)
        branches = self._trees and random.random() < 0.5
        ids: list[TargetId] = []
        parents: list[int] = []
        depths = [0]  # of the root, then of each id
        for index in range(random.randint(1, 6)):
            parent = random.randint(-1, index - 1) if branches else index - 1
            depth = depths[parent + 1]
            if depth >= limit:
                break
            ids.append(self._guess(context.emitted_count + depth))
            parents.append(parent)
            depths.append(depth + 1)
        return Proposal(tree=TokenTree(tuple(ids), tuple(parents), ("wild",) * len(ids)))

    def _guess(self, place: int) -> TargetId:
        if place < len(self._right) and self._random.random() < 0.7:
            return TargetId(self._right[place])
        return TargetId(self._random.randrange(self._ids))


def plainly(model: Any, ids: Sequence[int], tokens: int, **options: Any) -> list[int]:
    """What mlx-lm itself emits."""
    steps = generate_step(mx.array(list(ids)), model, max_tokens=tokens, **options)
    return [token for token, _ in steps]


def generate(
    drafter: Drafter,
    sampling: Sampling,
    *,
    prompt: Sequence[int] = (5, 17, 3),
    tokens: int = 40,
    session: TargetModelSession | None = None,
    store: RowStore | None = None,
) -> list[int]:
    """The ids that the random model emits after `prompt`."""
    session = session or TargetModelSession(random_model())
    limits = Limits(max_tokens=tokens)
    return rounds_of(drafter, session, sampling, prompt=prompt, limits=limits, store=store)[0]


def rounds_of(
    drafter: Drafter,
    session: TargetModelSession,
    sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
    *,
    prompt: Sequence[int] = (5, 17, 3),
    limits: Limits = Limits(max_tokens=40),  # noqa: B008
    store: RowStore | None = None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[list[int], list[Round]]:
    """The ids that a session emits after `prompt`, and the rounds that they came in."""
    context = Context([TargetId(i) for i in prompt])
    verifier = TargetVerifier(session, sampling, store)
    events = Decoding(context, drafter, verifier, limits=limits, clock=clock)
    rounds = [event for event in events if isinstance(event, Round)]
    return list(context.emitted), rounds


def decoder_of(pair: Any, **how: Any) -> Decoder:
    """A decoder of a target and a draft model. how: options, or fields of `Drafting`."""
    target, draft = pair
    tables = cache(lambda: align(draft.tokenizer.vocabulary, target.tokenizer.vocabulary))
    opened = {name: how.pop(name) for name in _OPENED if name in how}
    drafting = Drafting(alignment=tables, **opened).with_options(**how)
    return Decoder(target=target, draft=draft, drafting=drafting)


def emitted(generation: Generation) -> list[int]:
    """The ids of a generation, which is run to its end."""
    for _ in generation:
        pass
    return list(generation.context.emitted)
