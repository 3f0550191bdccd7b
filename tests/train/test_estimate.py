"""The estimate: close to what a pass and a step really hold."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from places import DEMO

from tokalign.build.corpus import Corpus
from tokalign.errors import BundleError, UsageError
from tokalign.names.model_shape import ModelShape
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.recurrent_drafter import DrafterConfig
from tokalign.runtime.mlx.shape import full_config
from tokalign.runtime.mlx.weights import load_weights, read_config
from tokalign.runtime.translation.base import Pair
from tokalign.tokenizer.vocabulary import DraftId, TargetId
from tokalign.train.estimate import estimate, recurrent_work, teaching_work
from tokalign.train.kinds import RecurrentLearner
from tokalign.train.labelled_corpus import LabelledCorpus, Labeller, label_corpus
from tokalign.train.options import MOST_PROBABLE, FitOptions, Kind, Labelling, LabelOptions, Loss
from tokalign.train.run import Training, fit
from tokalign.train.teaching import DraftLearner

CONFIG = DrafterConfig(hidden_size=192, vocabulary_size=4000, width=192, exit_width=192)
LABELS = LabelOptions(positions=128, held_out=0, window=128)
FIT = FitOptions(epochs=1, batch=128, candidates=2048)


@pytest.fixture
def bounds() -> Any:
    """Whether an estimate bounds what mlx holds at most in a block, besides what other tests do."""
    gc.collect()
    others = mx.get_active_memory()

    @contextmanager
    def holding(estimated: float) -> Iterator[None]:
        mx.clear_cache()
        mx.reset_peak_memory()
        yield
        assert estimated / 3 < mx.get_peak_memory() - others < 1.3 * estimated

    return holding


def test_it_bounds_what_mlx_really_holds(bounds: Any) -> None:
    model, _ = load_weights(DEMO / "target", dtype="float32")
    shape = _shape(DEMO / "target")
    whole = replace(shape, weight_bytes=2 * shape.weight_bytes)
    found = estimate(whole, [(LABELS, recurrent_work(whole, CONFIG, LABELS, FIT))], FIT)
    window: Any = [5 + 7 * i % 3900 for i in range(128)]
    labeller = Labeller(model, Labelling())
    with bounds(1e9 * found.labelling_memory_gb):
        labels = labeller.label(window)
    target = LanguageModel(model=model, tokenizer=SimpleNamespace(fingerprint="none"))
    corpus = LabelledCorpus(training=labels, held_out=labels, recipe={}, options=LABELS)
    made = RecurrentLearner(target, CONFIG, corpus, FIT)
    training = Training(made, steps=2)
    with bounds(1e9 * found.training_memory_gb):
        for _ in range(2):
            training.advance()


@pytest.mark.parametrize(
    ("kind", "loss", "lora"),
    [("greedy", "marginal", None), ("greedy", "marginal", 8), ("text", "text", None)],
)
def test_it_bounds_what_teaching_really_takes(
    tmp_path: Path, kind: Kind, loss: Loss, lora: int | None, sentences: Path, bounds: Any
) -> None:
    shapes = [_shape(DEMO / name) for name in ("target", "draft")]
    target, draft = (replace(one, weight_bytes=4 * one.parameters) for one in shapes)
    labels = LabelOptions(
        positions=512,
        held_out=128,
        window=128,
        labelling=Labelling(kind=kind, future=0, probable=MOST_PROBABLE),
    )
    options = FitOptions(epochs=1, candidates=1024, evaluations=1, lora=lora, losses=(loss,))
    found = estimate(target, [(labels, teaching_work(draft, labels, options))], options)
    model = LanguageModel[TargetId].from_folder(DEMO / "target", dtype="float32")
    with bounds(1e9 * found.labelling_memory_gb):
        labelled = label_corpus(model, Corpus([sentences]), tmp_path / "work", labels)
    written = (tmp_path / "work").rglob("labels.bin")
    written_gb = sum(path.stat().st_size for path in written) / 1e9
    assert 0 <= written_gb - found.labels_on_disk_gb < 1e-6  # two heads
    theirs = model.tokenizer
    del model
    gc.collect()
    taught = LanguageModel[DraftId].from_folder(DEMO / "draft", dtype="float32")
    pair, place = Pair(theirs, taught.tokenizer), tmp_path / "taught"
    with bounds(1e9 * found.training_memory_gb):
        fit(DraftLearner(taught, pair, labelled, options), place, tmp_path / "work")


def test_work_is_rows_times_weights() -> None:
    shape = _shape(DEMO / "target")
    assert shape.parameters == pytest.approx(2_539_200, rel=0.01)
    config = json.loads((DEMO / "target" / "config.json").read_text("utf-8"))
    four_bits = config | {"quantization": {"bits": 4, "group_size": 64}}
    quantized = ModelShape.from_config(four_bits, shape.weight_bytes * 4.5 / 16)
    assert (quantized.parameters, quantized.is_quantized) == (shape.parameters, True)
    kinds: tuple[Kind, ...] = ("greedy", "text")
    labels = [replace(LABELS, labelling=Labelling(kind=kind)) for kind in kinds]
    found = [
        estimate(shape, [(one, recurrent_work(shape, CONFIG, one, FIT))], FIT) for one in labels
    ]
    assert [one.rows_of_the_target for one in found] == [640, 128]
    assert found[0].labelling_tflop == pytest.approx(2e-12 * shape.parameters * 640)
    assert found[0].training_tflop == found[1].training_tflop


def _shape(folder: Path) -> ModelShape:
    return ModelShape.from_folder(folder, read_config(folder), remedy="")


def test_a_configuration_without_sizes_is_refused(tmp_path: Any) -> None:
    with pytest.raises(BundleError, match=r"hidden_size.*; give another"):
        ModelShape.from_folder(tmp_path, {}, remedy="give another")
    with pytest.raises(BundleError, match="num_attention_heads"):
        ModelShape.from_folder(tmp_path, {"hidden_size": 8}, remedy="")
    with pytest.raises(BundleError, match="division"):
        ModelShape.from_folder(tmp_path, {"num_attention_heads": 0, "hidden_size": 8}, remedy="")


def test_sizes_are_known_by_other_names_and_by_what_mlx_lm_takes_for_them() -> None:
    sizes = {"vocab_size": 99, "d_model": 64, "n_layers": 3, "n_heads": 4}
    dbrx = sizes | {
        "model_type": "dbrx",
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000.0},
    }
    shape = ModelShape.from_config(full_config(dbrx), 1e6)
    assert (shape.hidden_size, shape.layers, shape.heads, shape.kv_width) == (64, 3, 4, 32)
    assert shape.intermediate_size == 96
    inner = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    inner |= {"model_type": "gemma3_text"}
    gemma = {"model_type": "gemma3", "text_config": inner}  # as published, without heads
    shape = ModelShape.from_config(full_config(gemma), 1e6)
    assert (shape.heads, shape.attention_width, shape.kv_width) == (8, 8 * 256, 4 * 256)
    assert len(inner) == 4, "mlx-lm adds to what it is given"
    with pytest.raises(UsageError, match=r"no model of this.*; give another model"):
        full_config({"model_type": "none"})
    own = {"model_type": "none", "model_file": "own.py"}
    assert full_config(own) == own
