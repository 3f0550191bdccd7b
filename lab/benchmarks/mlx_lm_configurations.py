"""mlx-lm's own test configurations: what is emitted with drafts is what mlx-lm emits without.

    python -m lab.benchmarks.mlx_lm_configurations MLX_LM/tests/test_models.py [--tokens 600] \
        [NAME ...]

MLX_LM is a checkout of mlx-lm. Its tests build a small model of each configuration and hand it to
`model_test_runner`; here that method compares instead. Every model gets random float32 weights.
Two ways to draft are compared with mlx-lm's `generate_step`, id for id:

wild     chains, and trees where the model takes them, of ids that are right or wrong at random
copy     a copy of the model with perturbed weights drafts four ids a round

One row for each configuration; exit 1 if one of them differs. mlx-lm's `speculative_generate_step`
with the same copy is in the last column, for comparison.
"""

from __future__ import annotations

import sys
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.generate import generate_step
from mlx_lm.generate import speculative_generate_step as speculate_in_mlx_lm

from tokalign.api.call import speculative_generate_step
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.mlx.cache import kinds_without_rewinding
from tokalign.runtime.mlx.model_arguments import vocabulary_size
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.runtime.rounds import Context
from tokalign.runtime.verify import TargetVerifier
from tokalign.tokenizer.vocabulary import TargetId

# Wild drafts and random weights are those of the tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
zoo = import_module("zoo")

MOST_PARAMETERS = 500_000_000
"""Larger configurations are not run."""

SAME, DIFFERS = "yes", "**differs**"


@click.command()
@click.argument("tests", type=click.Path(path_type=Path, exists=True))
@click.argument("names", nargs=-1)
@click.option("--tokens", default=600, show_default=True)
def main(tests: Path, names: tuple[str, ...], tokens: int) -> None:
    """Compare every configuration, or those of these model types."""
    found = Counter[str]()
    click.echo("| configuration | wild | copy | mlx-lm's own speculation |\n|---|---|---|---|")

    def compare(_: Any, model: Any, model_type: str, *__: Any) -> None:
        if names and model_type not in names:
            return
        size = sum(weight.size for _, weight in tree_flatten(model.parameters()))
        if reason := zoo.UNBUILDABLE.get(model_type):
            cells = [f"not run: {reason}", "", ""]
        elif size > MOST_PARAMETERS:
            cells = [f"not run: {size / 1e6:,.0f} million parameters", "", ""]
        else:
            cells = _cells(model, tokens)
        found["configurations"] += 1
        ways = ("wild", "copy", "mlx-lm")
        found.update(f"{way}: {cell}" for way, cell in zip(ways, cells, strict=True) if cell)
        click.echo(f"| {model_type} | {' | '.join(cells)} |")

    suite = _tests_of(tests, compare)
    mx.random.seed(0)  # biases stay as they are made
    suite.run(unittest.TestResult())
    click.echo("\n" + "\n".join(f"{count} {what}" for what, count in sorted(found.items())))
    sys.exit(any("**" in what for what in found if "mlx-lm" not in what))


def _tests_of(path: Path, compare: Callable[..., None]) -> unittest.TestSuite:
    """The tests of that file that build a model, which is handed to `compare`."""
    spec = spec_from_file_location("mlx_lm_test_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = module.TestModels
    tests.model_test_runner = compare
    building = [
        name
        for name in unittest.TestLoader().getTestCaseNames(tests)
        if "model_test_runner" in getattr(tests, name).__code__.co_names
    ]
    return unittest.TestSuite(tests(name) for name in building)


def _cells(model: Any, tokens: int) -> list[str]:
    """What became of each way to draft."""
    mx.random.seed(0)
    model.set_dtype(mx.float32)
    model.update(tree_map_with_path(zoo.random_weight, model.parameters()))
    model.eval()
    ids = min(64, vocabulary_size(model))
    prompt = [(i * 7 + 3) % ids for i in range(12)]
    try:
        expected = [t for t, _ in generate_step(mx.array(prompt), model, max_tokens=tokens)]
    except Exception as error:  # each architecture fails in its own way
        return [f"mlx-lm itself cannot run it ({type(error).__name__})", "", ""]
    if kinds := kinds_without_rewinding(model):
        return [f"plain only ({', '.join(kinds)})", "", ""]
    draft = deepcopy(model)
    draft.update(tree_map(_perturbed, draft.parameters()))
    how: dict[str, Any] = {"max_tokens": tokens, "num_draft_tokens": 4}
    return [
        _verdict(lambda: _wild(model, prompt, expected, ids), expected),
        _verdict(
            lambda: [t for t, *_ in speculative_generate_step(prompt, model, draft, **how)],
            expected,
        ),
        _verdict(
            lambda: [t for t, *_ in speculate_in_mlx_lm(mx.array(prompt), model, draft, **how)],
            expected,
        ),
    ]


def _perturbed(weight: Any) -> Any:
    if not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    return weight + 0.02 * mx.random.normal(weight.shape) * mx.abs(weight).mean()


def _wild(model: Any, prompt: Sequence[int], expected: Sequence[int], ids: int) -> list[int]:
    session = TargetModelSession(model)
    context = Context([TargetId(i) for i in prompt])
    drafter = zoo.WildDrafter(expected, trees=session.can_branch, ids=ids)
    limits = Limits(max_tokens=len(expected))
    for _ in decode(context, drafter, TargetVerifier(session, Sampling()), limits=limits):
        pass
    return list(context.emitted)


def _verdict(run: Callable[[], list[int]], expected: list[int]) -> str:
    try:
        emitted = run()
    except Exception as error:
        return f"**{type(error).__name__}**"
    if emitted == expected:
        return SAME
    if emitted == expected[: len(emitted)]:
        return f"**{len(emitted)} tokens**"
    return DIFFERS


if __name__ == "__main__":
    main()
