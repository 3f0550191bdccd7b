"""Learning between answers: what a draft model gains in a long conversation on one topic.

    python -m lab.benchmarks.online --target MODEL --draft MODEL --text FILE --common FILE

Each text plays a conversation: it is cut into answers of 200 ids, each decoded with all before it
as the prompt. After an answer the draft model's layers make `--steps` steps on that answer and an
earlier one. Every conversation begins with the untaught model. A line of the output has rounds and
rows of each answer, by `exact` and by the hybrid with 7 ids. --common: text whose tokens the
softmax goes over besides those of the conversation and 4,096 drawn ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any

import click
import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from tokalign.runtime.mlx.target_session import TargetModelSession

from lab.benchmarks.joined import DraftModels
from lab.benchmarks.remembered_target import RememberingVerifier, Text, given_text
from tokalign.api.assemble import keep_loaded, load_models
from tokalign.cli.bench_options import read_texts
from tokalign.runtime.draft.hybrid import FREE_ROWS
from tokalign.runtime.draft.lookup import LogitStore
from tokalign.runtime.drafting import Drafting, make_drafter
from tokalign.runtime.loop import Limits, decode
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.rounds import Context, Round
from tokalign.tables.opening import open_dictionary
from tokalign.train.labellers import NextIds
from tokalign.train.labels import with_others
from tokalign.train.lessons import Reading, texts_of
from tokalign.train.options import Labelling
from tokalign.train.teaching import _ends, _freeze_ends

GIVEN, LENGTH = 12, 200


class Learner:
    """A draft model that learns what was verified."""

    def __init__(self, models: DraftModels, rate: float, steps: int, known: set[int]) -> None:
        self._models, self._steps = models, steps
        self._model = models.model.model
        self._body, self._head = _ends(self._model)
        self._weights = self._model.trainable_parameters()
        self._optimizer = optim.AdamW(rate, betas=[0.9, 0.98], weight_decay=0.0)
        self._optimizer.init(self._weights)
        self._ids, self._count = np.array(sorted(known), np.int32), 0
        self._answers: list[Any] = []
        self.seconds = 0.0

    def learn(self, answer: list[Any]) -> None:
        """Make steps on an answer and an earlier one."""
        began = process_time()
        [text] = texts_of(NextIds(None, Labelling(kind="text")).label(answer), len(answer))
        self._answers.append(np.array(Reading(self._models.pair, text).ids, np.int32))
        grad = mx.value_and_grad(self._loss)
        for _ in range(self._steps):
            self._count += 1
            earlier = np.random.default_rng(self._count).integers(len(self._answers))
            _, grads = grad(self._weights, [self._answers[-1], self._answers[earlier]])
            grads, _ = optim.clip_grad_norm(grads, 1.0)
            self._weights = self._optimizer.apply_gradients(grads, self._weights)
            mx.eval(self._weights, self._optimizer.state)
        self._model.update(self._weights)
        self.seconds += process_time() - began

    def _loss(self, weights: Any, texts: list[Any]) -> Any:
        self._model.update(weights)
        rows, count = vocabulary_size(self._model), len(self._ids) + 4_096
        candidates, log_weights = with_others(self._ids, rows, count, (0, self._count))
        found = []
        for ids in texts:
            logits = self._body(mx.array(ids)[None])[0, :-1] @ self._head(mx.array(candidates)).T
            right = mx.array(np.searchsorted(candidates, ids[1:]))[:, None]
            chosen = mx.take_along_axis(logits, right, axis=-1)[:, 0]
            found.append(mx.logsumexp(logits + mx.array(log_weights), axis=-1) - chosen)
        return mx.concatenate(found).mean()


@click.command()
@click.option("--target", required=True)
@click.option("--draft", required=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--common", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--turns", default=4)
@click.option("--rates", default="0,0.0003,0.001")
@click.option("--steps", default=4)
def main(
    target: str, draft: str, text: Path, common: Path, turns: int, rates: str, steps: int
) -> None:
    """Print a line for each conversation and rate; a rate of 0 learns nothing."""
    [ours] = load_models([target], dtype="float32")
    models, session = DraftModels.load(ours, draft, 2), TargetModelSession(ours.model)
    keep_loaded()
    _freeze_ends(models.model.model)
    first, encode = models.model.model.trainable_parameters(), models.pair.draft.encode
    known = {i for line in read_texts(common, field="text", limit=300) for i in encode(line)}
    table = open_dictionary(ours.tokenizer, files=[])
    for number, line in enumerate(read_texts(text, field="text", limit=None)):
        base = given_text(ours.tokenizer.encode(line)[: GIVEN + turns * LENGTH], GIVEN)
        for rate in map(float, rates.split(",")):
            models.model.model.update(first)
            learner = Learner(models, rate, steps, known | set(encode(" " + line)))
            how = Drafting(
                method="hybrid",
                dictionary=table,
                logits=LogitStore(),
                draft_rows=7,
                costs=FREE_ROWS,
            )
            found: dict[str, list[tuple[int, int]]] = {"exact": [], "hybrid": []}
            for start in range(GIVEN, len(base.output) + GIVEN - LENGTH + 1, LENGTH):
                one = Text(base.ids, start, base.sampler, base.rows)
                for name, rounds in found.items():
                    drafter: Any = models.drafter(one)
                    if name == "hybrid":
                        drafter = make_drafter(how, drafter)
                    store = how.logits if name == "hybrid" else None
                    verifier = RememberingVerifier(session, one, store)
                    limits = Limits(max_tokens=LENGTH)
                    events = decode(Context(one.ids[:start]), drafter, verifier, limits=limits)
                    of = [event for event in events if isinstance(event, Round)]
                    rounds.append((len(of), sum(event.rows for event in of)))
                if rate:
                    learner.learn(one.ids[start - GIVEN : start + LENGTH])
            echo = {"text": number, "rate": rate, "seconds": round(learner.seconds, 2), **found}
            click.echo(json.dumps(echo))


if __name__ == "__main__":
    main()
