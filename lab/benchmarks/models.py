"""What works with each architecture of mlx-lm, on small random models: lab/results/models.md.

    python -m lab.benchmarks.models [NAME ...]       one row for each architecture, or for these

Every "yes" is a comparison with mlx-lm's own `generate_step`, id for id, in float32:

chain    drafts that are right or wrong at random, over 90 tokens from a prompt of 12 ids
tree     the same with trees; otherwise the reason why not
lookup   a dictionary and context copy, each alone and both in one tree
draft    the model drafts for itself, and at least 9 of 10 of its ids are accepted
cache    two turns over one prompt cache
kv       drafts with a quantized cache: 8 bits in groups of 32; "without effect" where mlx-lm
         quantizes no part of the cache
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from tokalign.api.call import speculative_generate_step
from tokalign.api.text import stream_generate
from tokalign.runtime.loop import Decoding, Limits, TargetVerifier
from tokalign.runtime.mlx.cache import kinds_without_rewinding
from tokalign.runtime.mlx.layers import leaves_of
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import CacheOptions
from tokalign.runtime.rounds import Context
from tokalign.tokenizer.vocabulary import TargetId

# The models are those of the tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
zoo, small_tokenizers = import_module("zoo"), import_module("small_tokenizers")

PROMPT = [(i * 7 + 3) % zoo.VOCABULARY for i in range(120)]
TOKENS = 90
QUANTIZED: dict[str, Any] = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 20}
TOKENIZER = small_tokenizers.of_merges(bytes(range(32, 32 + zoo.VOCABULARY)), [])
LOOKUPS = ("dictionary", "copy", "hybrid")
HEAD = ["architecture", "caches", "chain", "tree", "lookup", "draft", "cache", "kv"]


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Measure what works with each architecture."""
    click.echo(_line(HEAD))
    click.echo(_line(["---"] * len(HEAD)))
    for name in names or zoo.architectures():
        click.echo(_line([name, *_cells(name)]))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(name: str) -> list[str]:
    if name in zoo.UNBUILDABLE:
        return [f"not measured: {zoo.UNBUILDABLE[name]}", *[""] * (len(HEAD) - 2)]
    model = zoo.zoo_model(name)
    kinds = sorted({type(leaf).__name__ for leaf in leaves_of(make_prompt_cache(model))})
    cells = [", ".join(kinds)]
    if kinds_without_rewinding(model):
        return [*cells, "plain only", *[""] * (len(HEAD) - 3)]
    expected = _plain(model)
    can_branch = TargetModelSession(model).can_branch
    return [
        *cells,
        _verdict(lambda: _drafted(model, expected, trees=False) == expected),
        _verdict(lambda: _drafted(model, expected, trees=True) == expected) if can_branch else "no",
        _verdict(lambda: all(_looks_up(model, expected, how) for how in LOOKUPS)),
        _verdict(lambda: _drafts(model, expected)),
        _verdict(lambda: _keeps_cache(model)),
        _quantized(model),
    ]


def _verdict(check: Callable[[], bool]) -> str:
    try:
        return "yes" if check() else "**differs**"
    except Exception as error:
        return f"**{type(error).__name__}**"


def _plain(
    model: Any, ids: Sequence[int] = PROMPT[:12], tokens: int = TOKENS, **how: Any
) -> list[int]:
    return [t for t, _ in generate_step(mx.array(list(ids)), model, max_tokens=tokens, **how)]


def _drafted(model: Any, expected: list[int], *, trees: bool, **how: Any) -> list[int]:
    session = TargetModelSession(model, CacheOptions(**how))
    context = Context([TargetId(i) for i in PROMPT[:12]])
    drafter = zoo.WildDrafter(expected, trees=trees and session.can_branch)
    limits = Limits(max_tokens=len(expected), context_length=session.context_length, target=session)
    for _ in Decoding(context, drafter, TargetVerifier(session, Sampling()), limits=limits):
        pass
    return list(context.emitted)


def _looks_up(model: Any, expected: list[int], method: str) -> bool:
    emitted, proposed = zoo.with_lookups(model, TOKENIZER, PROMPT[:12], expected, method)
    return bool(emitted == expected and proposed > 0)


def _drafts(model: Any, expected: list[int]) -> bool:
    """Whether a model that drafts for itself is right."""
    steps = list(
        speculative_generate_step(PROMPT[:12], model, model, max_tokens=TOKENS, num_draft_tokens=4)
    )
    accepted = sum(from_draft for _, _, from_draft in steps)
    return [t for t, _, _ in steps] == expected and accepted >= 0.9 * TOKENS * 4 / 5


def _keeps_cache(model: Any) -> bool:
    kept, whole = make_prompt_cache(model), list[int]()
    for turn in (PROMPT[:40], PROMPT[50:60]):
        whole += turn
        expected = _plain(model, whole, 30)
        responses = stream_generate(
            model,
            TOKENIZER,
            list(turn),
            max_tokens=30,
            method="copy",
            num_draft_tokens=4,
            prompt_cache=kept,
        )
        if [response.token for response in responses] != expected:
            return False
        whole += expected
    return True


def _quantized(model: Any) -> str:
    if not any(hasattr(layer, "to_quantized") for layer in make_prompt_cache(model)):
        return "without effect"
    try:
        expected = _plain(model, **QUANTIZED)
    except Exception:
        return "refused by mlx-lm"
    return _verdict(lambda: _drafted(model, expected, trees=True, **QUANTIZED) == expected)


if __name__ == "__main__":
    main()
