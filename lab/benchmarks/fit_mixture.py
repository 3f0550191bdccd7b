"""Fit the weights by which a hybrid mixes its sources (`tokalign/runtime/draft/mixing.py`).

    python -m lab.benchmarks.fit_mixture --target MODEL --prompts FILE [--limit 10] [--rows 15]
    python -m lab.benchmarks.fit_mixture --target MODEL --prompts FILE --draft-model MODEL [-k 2]
    python -m lab.benchmarks.fit_mixture --target MODEL --prompts FILE --drafter FOLDER

The hybrid decodes the target's own output as in `draft_free.py`, once with the logit store kept
from request to request and once with an empty one for each. At every node of its trees that the
output goes through, each id that a source named is an example, right or wrong. Weights come from a
logistic regression with a normal prior around 0. The weights of copies stay as they are, because
outputs that do not repeat their prompt say nothing about those that do. Even and odd texts also
judge each other: the loss is that of the examples of a node together, in nats. Report figures on
other prompts.

With a draft model or a recurrent drafter, which is asked in every round, only its weights are
fitted unless --all says otherwise: those of the free sources have to be right without it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from lab.benchmarks.draft_free import Condition, measured
from lab.benchmarks.draft_models import DraftModels
from lab.benchmarks.drafter import World
from lab.benchmarks.own_outputs import OwnOutputs, own_outputs
from lab.benchmarks.remembered_target import Text
from tokalign.runtime.draft import recurrent
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.hybrid import FREE_ROWS, AnswerSource, ComingNoise, Hybrid
from tokalign.runtime.draft.lookup import LogitStore, dictionary_sources, logit_sources
from tokalign.runtime.draft.mixing import Mixing, Source, Weights, weights_of
from tokalign.runtime.draft.neural import ModelDrafter
from tokalign.runtime.rounds import Context, Drafter, Proposal, Round, RowStore
from tokalign.runtime.translation.base import SOURCE
from tokalign.tables.dictionary import Dictionary
from tokalign.tables.opening import open_dictionary
from tokalign.tokenizer.vocabulary import TargetId

PRECISION = 3.0
"""Of the prior of every weight."""

KEPT = "copy"
"""The source whose weights are not fitted."""


class Example(NamedTuple):
    """An id that some source named at a node. stated: log-odds by source, None where it is silent.

    asked: which sources named anything there.
    """

    text: int
    node: int
    stated: tuple[float | None, ...]
    asked: tuple[bool, ...]
    right: bool


class WatchedHybrid(Drafter):
    """A hybrid whose sources are also asked along the text that will come.

    Every node that the text goes through gives examples. model: joins in every round.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        model: ModelDrafter | None,
        rows: int,
        mixing: Mixing,
        examples: list[Example],
        text: tuple[int, Text],
    ) -> None:
        self._sources, self._model, self._examples = sources, model, examples
        self._rows, self._hybrid = rows, Hybrid(sources, rows=rows, mixing=mixing)
        self._text = text

    def propose(self, context: Context, limit: int) -> Proposal:
        number, text = self._text
        proposal = self._hybrid.propose(context, limit)
        sources = self._sources
        if self._model is not None:
            answer = self._model.draft(context, steps=self._model.steps, limit=limit).tree
            most = min(limit, self._rows)
            tree, _ = self._hybrid.offer(context.ids, most, FREE_ROWS, answer=answer)
            proposal = Proposal(tree=tree)
            sources = [*sources, AnswerSource(answer)]
        states = [source.follow(context.ids) for source in sources]
        came = text.ids[len(context.ids) :]
        for token in came[: 1 + len(proposal.tree.path_of(came))]:
            self._watch(number, sources, states, token)
            states = [
                None if state is None else source.advance(state, token)
                for source, state in zip(sources, states, strict=True)
            ]
        return proposal

    def observe(self, one: Round) -> None:
        self._hybrid.observe(one)

    def _watch(
        self, number: int, sources: Sequence[Source], states: Sequence[object], came: TargetId
    ) -> None:
        stated = [
            dict(source.expect(state) or ()) if state is not None else {}
            for source, state in zip(sources, states, strict=True)
        ]
        asked = tuple(map(bool, stated))
        node = 1 + self._examples[-1].node if self._examples else 0
        for token in dict.fromkeys(token for one in stated for token in one):
            said = tuple([one.get(token) for one in stated])
            self._examples.append(Example(number, node, said, asked, token == came))


def examples_of(
    outputs: OwnOutputs,
    dictionary: Dictionary | None,
    rows: int,
    drafts: Callable[[Text], ModelDrafter] | None,
    drafts_as: str,
) -> tuple[list[str], list[Example]]:
    """The names of the sources and the examples of all texts, with both kinds of stores.

    drafts: makes the draft model of a text, which comes last and is called `drafts_as`.
    """
    names: list[str] = []
    examples: list[Example] = []
    for empty in (False, True):
        mixing, begun = Mixing(), iter(enumerate(outputs.texts))

        def make(
            store: RowStore | None,
            _: ComingNoise | None,
            mixing: Mixing = mixing,
            begun: Iterator[tuple[int, Text]] = begun,
        ) -> WatchedHybrid:
            assert isinstance(store, LogitStore)
            sources: list[Source] = [ContextCopy()]
            sources += dictionary_sources(dictionary) if dictionary is not None else []
            sources += logit_sources(store)
            text = next(begun)
            model = drafts(text[1]) if drafts is not None else None
            names[:] = [*[source.name for source in sources], *([drafts_as] if model else [])]
            return WatchedHybrid(sources, model, rows, mixing, examples, text)

        measured(replace(outputs, empty=empty), Condition(LogitStore, make))
    return names, examples


def features(examples: Sequence[Example]) -> NDArray[np.float64]:
    """f[examples, 3 * sources]: log-odds that a source states, whether it does, whether not."""
    stated = np.array([example.stated for example in examples], dtype=float)
    asked = np.array([example.asked for example in examples])
    named = ~np.isnan(stated)
    return np.concatenate([np.nan_to_num(stated), named, asked & ~named], axis=1)


def fitted(
    examples: Sequence[Example], fits: Sequence[bool], known: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weights f[3 * sources] of a logistic regression, by Newton's method.

    fits: for each source, whether its weights are fitted. known: the others', in the same shape.
    """
    every, right = features(examples), np.array([example.right for example in examples], float)
    free = np.array([*fits] * 3)
    weights = np.where(free, 0.0, known)
    rows = every[:, free]
    for _ in range(50):
        p = 1 / (1 + np.exp(-every @ weights))
        gradient = rows.T @ (right - p) - PRECISION * weights[free]
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + PRECISION * np.eye(rows.shape[1])
        step = np.linalg.solve(hessian, gradient)
        weights[free] += step
        if abs(step).max() < 1e-6:
            break
    return weights


def loss(examples: Sequence[Example], weights: NDArray[np.float64]) -> float:
    """Nats per node."""
    right = np.array([example.right for example in examples])
    p = np.clip(1 / (1 + np.exp(-features(examples) @ weights)), 1e-9, 1 - 1e-9)
    nodes = len({example.node for example in examples})
    return float(-np.log(np.where(right, p, 1 - p)).sum() / nodes)


@click.command()
@own_outputs
@click.option("--rows", default=15, show_default=True, help="Drafted ids.")
@click.option("--dictionary", type=click.Path(path_type=Path, exists=True), help="Default: found.")
@click.option("--draft-model")
@click.option("--drafter", type=click.Path(path_type=Path, exists=True))
@click.option("-k", "--num-draft-tokens", default=2, show_default=True)
@click.option("--all", "fit_all", is_flag=True, help="Fit the free sources beside it, too.")
def benchmark(
    outputs: OwnOutputs,
    *,
    rows: int,
    dictionary: Path | None,
    draft_model: str | None,
    drafter: Path | None,
    num_draft_tokens: int,
    fit_all: bool,
) -> None:
    """Print the weights as `mixing.WEIGHTS` has them, and losses with them and with those there."""
    model = outputs.model
    table = open_dictionary(model.tokenizer, files=[dictionary] if dictionary else [])
    drafts: Callable[[Text], ModelDrafter] | None = None
    if draft_model is not None:
        drafts = DraftModels.load(model, draft_model, num_draft_tokens).drafter
    elif drafter is not None:
        drafts = World.of(model, drafter, list(outputs.texts)).beams
    name = SOURCE if draft_model is not None else recurrent.SOURCE
    names, examples = examples_of(outputs, table, rows, drafts, name)
    outputs.save()
    shipped = np.array([weights_of(name) for name in names]).T.reshape(-1)
    fits = [source != KEPT if fit_all or not drafts else source == name for source in names]
    halves = [[e for e in examples if e.text % 2 == half] for half in (0, 1)]
    judged = [loss(halves[1 - half], fitted(halves[half], fits, shipped)) for half in (0, 1)]
    known = [loss(halves[1 - half], shipped) for half in (0, 1)]
    best = fitted(examples, fits, shipped).reshape(3, -1).T.tolist()
    for name, weights in zip(names, best, strict=True):
        click.echo(f'    "{name}": Weights({", ".join(f"{w:.2f}" for w in Weights(*weights))}),')
    count = sum(example.right for example in examples)
    click.echo(
        f"{len(examples)} examples, {count} right; nats per node of the other half: "
        f"{np.mean(judged):.3f} fitted, {np.mean(known):.3f} with the weights there"
    )


if __name__ == "__main__":
    benchmark()
