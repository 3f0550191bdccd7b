"""A draft model with the target's vocabulary put on: an experiment beside `tokalign train --draft`.

    python -m lab.benchmarks.transplant --target MODEL --draft MODEL --output FOLDER
        --corpus FILE [--positions N] [--keep-vocabulary]

The row of a target token is the mean of the draft's rows over the draft tokens that spell it. So
the result needs no translation. Then it is taught by text, embeddings included, since a mean is
but a start. With --keep-vocabulary the draft model itself is taught by the same text, to compare.
`lab.benchmarks.alignment --draft-model FOLDER --only "none, tree"` says what it is worth.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from time import process_time
from typing import Any

import click
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tokalign.runtime.mlx.target_session import find_head

from tokalign.api.assemble import load_models
from tokalign.build.corpus import Corpus
from tokalign.cli.output import echo
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.translation.base import Pair
from tokalign.train.labelled_corpus import label_corpus
from tokalign.train.labellers import NextIds
from tokalign.train.options import FitOptions, Labelling, LabelOptions
from tokalign.train.run import fit
from tokalign.train.teaching import DraftLearner


def put_on(target: LanguageModel[Any], draft: LanguageModel[Any], folder: Path) -> None:
    """Write the draft model with the target's vocabulary and tokenizer."""
    assert draft.folder is not None
    assert target.folder is not None
    config = json.loads((draft.folder / "config.json").read_text())
    size = json.loads((target.folder / "config.json").read_text())["vocab_size"]
    pair = Pair(target.tokenizer, draft.tokenizer)
    special = {theirs: own for own, theirs in pair.roles().items()}
    tokens = target.tokenizer.vocabulary.tokens
    spelled = [
        [special[i]] if i in special else draft.tokenizer.encoder.encode(data) if data else []
        for i, data in enumerate(tokens)
    ]

    def mean(rows: Any) -> Any:
        old = np.array(rows.astype(mx.float32))
        new = np.repeat(old.mean(axis=0, keepdims=True), size, axis=0)
        for i, ids in enumerate(spelled[:size]):
            if ids:
                new[i] = old[ids].mean(axis=0)
        return mx.array(new).astype(rows.dtype)

    ends = {id(draft.model.model.embed_tokens.weight), id(find_head(draft.model).weight)}
    weights = dict(tree_flatten(draft.model.parameters()))
    weights = {name: mean(w) if id(w) in ends else w for name, w in weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path in target.folder.glob("tokenizer*"):
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size}, indent=1))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    echo(f"{np.mean([len(ids) == 1 for ids in spelled]):.1%} of the tokens are one of the draft's")


@click.command()
@click.option("--target", required=True)
@click.option("--draft", required=True)
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--positions", default=200_000)
@click.option("--keep-vocabulary", is_flag=True)
def main(
    target: str, draft: str, corpus: Path, output: Path, positions: int, keep_vocabulary: bool
) -> None:
    """Teach a draft model by text, with the target's vocabulary or its own."""
    teacher, taught = load_models([target, draft], dtype="float32")
    if not keep_vocabulary:
        start = output.with_name(f"{output.name}.start")
        put_on(teacher, taught, start)
        [taught] = load_models([str(start)], dtype="float32")
    place = output.with_name("labels")
    options = LabelOptions(positions=positions, held_out=1_024, labelling=Labelling(kind="text"))
    labels = label_corpus(teacher, Corpus([corpus]), place, options, labeller=NextIds)
    candidates = 16_384 if keep_vocabulary else None
    how = FitOptions(
        epochs=1, batch=1_024, candidates=candidates, patience=None, losses=("text",), evaluations=4
    )
    pair = Pair(teacher.tokenizer, taught.tokenizer)
    learner = DraftLearner(taught, pair, labels, how, options.window)
    if not keep_vocabulary:
        learner.module.unfreeze()
    began = process_time()
    trained = fit(learner, output, place, report=lambda one: echo(f"{one.step}: {one.loss:.3f}"))
    seconds = process_time() - began
    echo(f"{trained.parameters:,} weights, {trained.best:.3f} right, {seconds:.0f} s of processor")


if __name__ == "__main__":
    main()
