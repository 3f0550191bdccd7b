"""Drafter folders: what training writes is read, and what does not fit is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from block_drafters import block_config, random_block_drafter, write_block_drafter
from mlx.utils import tree_flatten
from random_drafters import random_drafter, write_drafter
from random_models import random_model

from tokalign.errors import (
    BundleError,
    FingerprintError,
    IncompatibleError,
    MissingAssetError,
    TokalignError,
)
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import find_drafter, named_drafter
from tokalign.runtime.mlx.recurrent_drafter import RecurrentDrafter


@pytest.fixture(scope="module")
def target(models: dict[str, str]) -> LanguageModel[Any]:
    return LanguageModel.from_folder(Path(models["target"]))


def made(target: LanguageModel[Any], seed: int = 1) -> RecurrentDrafter:
    return random_drafter(target.model, seed)


def saved(folder: Path, target: LanguageModel[Any], seed: int = 1) -> Path:
    return write_drafter(folder, made(target, seed), target)


def weights_of(drafter: RecurrentDrafter) -> list[tuple[str, Any]]:
    return [(name, value.tolist()) for name, value in tree_flatten(drafter.parameters())]


def test_what_was_written_is_read(target: LanguageModel[Any], tmp_path: Path) -> None:
    found = named_drafter(saved(tmp_path, target), target)
    assert found.config == made(target).config
    assert weights_of(found) == weights_of(made(target))
    saved(tmp_path, target, seed=2)
    assert weights_of(named_drafter(tmp_path, target)) == weights_of(made(target, 2))


def test_weights_that_an_older_version_has_left_are_not_read(
    target: LanguageModel[Any], tmp_path: Path
) -> None:
    folder, part = saved(tmp_path / "new", target), "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / part)
    index = {"weight_map": {name: part for name, _ in weights_of(made(target))}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    copy(saved(tmp_path / "old", target, seed=2) / "model.safetensors", folder)
    assert weights_of(named_drafter(folder, target)) == weights_of(made(target))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_number_format_of_the_target_does_not_matter(
    target: LanguageModel[Any], tmp_path: Path, dtype: str
) -> None:
    assert target.folder is not None
    other: LanguageModel[Any] = LanguageModel.from_folder(target.folder, dtype=dtype)
    if dtype != "bfloat16":  # it has fewer digits than the float16 of the weights
        named_drafter(saved(tmp_path, target), other)
    drafter = made(other)
    _, logits = drafter.step(drafter.initial_state(mx.zeros((1, 32))), mx.array([3]))
    assert logits.dtype == getattr(mx, dtype)


def test_a_drafter_of_another_model_is_refused(target: LanguageModel[Any], tmp_path: Path) -> None:
    folder = saved(tmp_path, target)
    other = random_model(1, vocabulary=len(target.tokenizer.vocabulary))
    with pytest.raises(IncompatibleError, match="another model"):
        named_drafter(folder, replace(target, model=other))
    assert target.folder is not None
    quantized: LanguageModel[Any] = LanguageModel.from_folder(target.folder)
    nn.quantize(quantized.model, group_size=32, bits=8, class_predicate=_can_be_quantized)
    with pytest.raises(IncompatibleError, match="quantization"):
        named_drafter(folder, quantized)


def _can_be_quantized(_: str, layer: Any) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def test_a_drafter_of_another_tokenizer_is_refused(
    target: LanguageModel[Any], models: dict[str, str], tmp_path: Path
) -> None:
    folder = saved(tmp_path, target)
    with pytest.raises(FingerprintError, match="tokalign train"):
        named_drafter(folder, LanguageModel.from_folder(Path(models["draft"])))


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"target": "a model"}', '{"target": {}}'])
def test_a_published_drafter_that_was_trained_for_another_tokenizer_is_refused(
    target: LanguageModel[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """A folder that does not say what it was trained for is taken as it is."""
    monkeypatch.setenv("TOKALIGN_TABLES", str(tmp_path))
    config, drafter = block_config(target.model), random_block_drafter(target.model)
    folder = write_block_drafter(tmp_path / "drafter", drafter, config)
    written = folder / "training.json"
    written.write_text(record)
    assert find_drafter(target)
    written.write_text(json.dumps({"target": {"tokenizer": "0123" * 16, "weights": "any"}}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))  # so it is read again
    with pytest.raises(FingerprintError, match="was built for tokenizer 012301230123 but this"):
        named_drafter(folder, target)
    assert find_drafter(target) is None


def weights_path(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def rewrite(
    change: Callable[[bytes], bytes], name: str = "*.safetensors"
) -> Callable[[Path], None]:
    def rewritten(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.write_bytes(change(path.read_bytes()))

    return rewritten


def change(name: str = "config.json", **fields: Any) -> Callable[[Path], None]:
    return rewrite(lambda data: json.dumps(json.loads(data) | fields).encode(), name)


def trained_for(**fields: Any) -> Callable[[Path], None]:
    return change("training.json", target=fields)


OLD = {"format": "tokalign recurrent drafter", "version": 1}


@pytest.mark.parametrize(
    ("harm", "error", "message"),
    [
        (rewrite(lambda data: data[:-100]), BundleError, "model.safetensors.*fetch it again"),
        (lambda folder: weights_path(folder).unlink(), BundleError, "lacks its weights"),
        (change(width=25), BundleError, "cannot be run: .*shape"),
        (change(depth=3), BundleError, "cannot be run: it has depth"),
        (rewrite(lambda data: data[:80], "config.json"), BundleError, "cannot be read"),
        (
            lambda folder: (folder / "config.json").unlink(),
            MissingAssetError,
            "there is no drafter",
        ),
        (change(model_type="a model"), BundleError, "no drafter of a known format"),
        (change(model_type=None, **OLD), BundleError, "says 'tokalign recurrent drafter'"),
        (change(vocab_size=3), IncompatibleError, "with 3 ids"),
        (change(num_draft_layers=10**6), BundleError, r"<= 1000 - at `\$.num_draft_layers"),
        (change(width=10**30), BundleError, r"\$.width|out of range"),
        (trained_for(weights=5), IncompatibleError, "another model"),
        (trained_for(tokenizer=5), FingerprintError, "was built for tokenizer 5"),
    ],
)
def test_whatever_is_harmed_is_refused_in_one_line(
    target: LanguageModel[Any],
    tmp_path: Path,
    harm: Callable[[Path], None],
    error: type[TokalignError],
    message: str,
) -> None:
    folder = saved(tmp_path, target)
    harm(folder)
    with pytest.raises(error, match=message) as refused:
        named_drafter(folder, target)
    assert "\n" not in str(refused.value)
    remedies = "tokalign train", "give another one", "fetch", "give its own target"
    assert any(does in str(refused.value) for does in remedies)
