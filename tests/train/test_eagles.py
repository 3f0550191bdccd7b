"""Training an EAGLE-3 drafter: all drafts at once are what a session gives one after another."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from eagle_drafters import eagle_config, random_eagle, write_eagle
from labelled import random_labels
from mlx_lm.models import qwen3
from mlx_lm.models.cache import KVCache
from random_models import random_model
from small_tokenizers import trained_tokenizer

from tokalign.build.corpus import Corpus
from tokalign.errors import UsageError
from tokalign.runtime.mlx.taps import LayerOutputs
from tokalign.runtime.mlx.tree_attention import RowPositions, with_row_positions
from tokalign.train.drafters import WindowBatches
from tokalign.train.eagles import EagleLearner, draft_states
from tokalign.train.labelled_corpus import LabelledCorpus
from tokalign.train.labels import Labels
from tokalign.train.options import FitOptions, Kind, Labelling, LabelOptions

TAPS, WINDOW = (0, 1, 2), 20
WHOLE = FitOptions(batch=99, candidates=None)


@pytest.mark.parametrize("kind", ["text", "greedy"])
@pytest.mark.parametrize(
    "switches", [(), ("norm_before_residual", "norm_before_fc"), ("fc_norm", "norm_output")]
)
def test_drafts_of_a_batch_are_those_of_a_cache(kind: Kind, switches: tuple[str, ...]) -> None:
    model = random_model(layers=3)
    changed = dict.fromkeys(switches, True)
    drafter = random_eagle(model, eagle_config(model, draft_vocab_size=96, **changed))
    labelling = Labelling(kind=kind, future=4, taps=TAPS)
    labels = random_labels(2, WINDOW, layers=3, **asdict(labelling))
    made = WindowBatches(labels, labelling, WHOLE, window=WINDOW, vocabulary_size=96)
    batch = made.drafts(np.array([0, 1]), 1)
    found = draft_states(drafter, batch)
    positions = RowPositions()
    alone = with_row_positions(drafter, positions)
    for number, window in enumerate(batch.text.tolist()):
        for index, place in enumerate(batch.places.tolist()):
            outputs, cache = LayerOutputs(model, TAPS), [KVCache()]
            outputs.model(mx.array([window[: place + 1]]))
            states = alone.states(outputs.take().astype(mx.float16))
            following = batch.following[number, index].tolist()
            positions.now = mx.arange(1, place + 2)
            ids = mx.array([*window[1 : place + 1], following[0]])
            out = alone.read(ids, states, cache, "causal")[-1:]
            for step, token in enumerate(following[1:], 1):
                assert mx.allclose(found[number, index, step - 1], out[0], 2e-3, 2e-3)
                positions.now = mx.array([place + 1 + step])
                out = alone.read(mx.array([token]), out, cache, None)


def test_a_head_that_norms_queries_is_not_trained_on(tmp_path: Path) -> None:
    """It would be written as another network."""
    model: Any = random_model(layers=3)
    config = eagle_config(model, head_dim=8)
    write_eagle(tmp_path, random_eagle(model, config, qwen3.Attention), config, "layers.0.")
    learner, target = cast("Any", SimpleNamespace()), cast("Any", SimpleNamespace(model=model))
    with pytest.raises(UsageError, match="leave --begin-with out"):
        EagleLearner.continued(learner, target, tmp_path)


def test_a_norm_that_is_told_beside_the_layers_is_written_as_others(tmp_path: Path) -> None:
    model: Any = random_model(layers=3)
    config = eagle_config(model, norm_before_fc=True)
    network = random_eagle(model, config)
    config["eagle_config"]["norm_before_fc"] = config.pop("norm_before_fc")
    learner: Any = SimpleNamespace(_remark=lambda *_: None, _with_head=lambda _, told, __: told)
    target: Any = SimpleNamespace(model=model)
    _, told = EagleLearner.continued(learner, target, write_eagle(tmp_path, network, config))
    assert told["norm_before_fc"]


def test_ids_are_counted_in_labels_and_in_the_corpora_they_were_made_of(tmp_path: Path) -> None:
    tokenizer: Any = trained_tokenizer(340)
    size = len(tokenizer.vocabulary)
    ids = np.array([[9, 4, 4], [9, 7, 2], [9, 4, 7]])
    labels = Labels(np.zeros((3, 1), np.float16), ids)
    how = LabelOptions(labelling=Labelling(future=2))
    first = LabelledCorpus(training=labels, held_out=labels, recipe={}, options=how)
    assert first.frequencies(tokenizer, 10).tolist() == [0, 0, 1, 0, 3, 0, 0, 2, 0, 0]
    rare = Labels(labels.values, np.full((3, 3), 2))
    more = replace(first, own=replace(first, training=rare))
    assert more.frequencies(tokenizer, 10)[2] == 1 + 6
    text = tmp_path / "text.txt"
    text.write_text("ala ma kota\n" * 3)
    read = replace(first, corpus=Corpus([text])).frequencies(tokenizer, size)
    counted = 3 * np.bincount(tokenizer.encode("ala ma kota\n"), minlength=size)
    assert (read - first.frequencies(tokenizer, size)).tolist() == counted.tolist()
    held = np.array([tokenizer.encode("ala ma kota\n")] * 3).T
    held_out = Labels(np.zeros((len(held), 1), np.float16), held)
    less = replace(first, corpus=Corpus([text]), held_out=held_out).frequencies(tokenizer, size)
    assert (read - less).tolist() == (counted // 3).tolist()
