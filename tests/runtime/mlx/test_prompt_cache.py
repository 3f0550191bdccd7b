"""Prompt-cache files: mlx-lm reads ours, we read mlx-lm's, and what does not fit is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import cache_prompt
from mlx_lm.models.cache import RotatingKVCache, load_prompt_cache
from random_models import random_model, write_model
from zoo import VOCABULARY, zoo_model

from tokalign.errors import (
    BundleError,
    FingerprintError,
    IncompatibleError,
    MissingAssetError,
    UsageError,
)
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.draft.logit_store import LogitStore, tail_of
from tokalign.runtime.mlx.cache import CacheOptions
from tokalign.runtime.mlx.prompt_cache import read_prompt_cache, write_prompt_cache
from tokalign.runtime.mlx.rows_of_text import learn_text
from tokalign.runtime.mlx.session import ModelSession
from tokalign.runtime.mlx.target_session import TargetModelSession

IDS = [7, 3, 250, 18, 40, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel[Any]:
    folder = write_model(tmp_path_factory.mktemp("m") / "model", vocabulary_size=340)
    return LanguageModel.from_folder(folder)


def filled(
    model: LanguageModel[Any], options: CacheOptions | None = None, rotating: int | None = None
) -> ModelSession[Any]:
    """A session that holds IDS, in rotating caches of a size if one is given."""
    own = None
    if rotating:
        own = [RotatingKVCache(max_size=rotating, keep=4) for _ in model.model.layers]
    session: ModelSession[Any] = ModelSession(model.model, options, cache=own)
    session.settle(IDS)
    return session


def written(
    path: Path, model: LanguageModel[Any], session: ModelSession[Any] | None = None
) -> Path:
    session = session or filled(model)
    write_prompt_cache(path, session.layers, IDS, model)
    return path


@pytest.mark.parametrize(
    ("options", "rotating"),
    [
        (CacheOptions(), None),
        (CacheOptions(), 8),
        (CacheOptions(kv_bits=8, kv_group_size=32, quantized_kv_start=0), None),
    ],
)
def test_what_was_written_is_read(
    model: LanguageModel[Any], tmp_path: Path, options: CacheOptions, rotating: int | None
) -> None:
    model = replace(model, model=random_model(vocabulary=340, heads=1))
    path = written(tmp_path / "a.safetensors", model, filled(model, options, rotating))
    found = read_prompt_cache(path, model)
    assert found.ids == tuple(IDS)
    assert found.fitting(CacheOptions()) == (CacheOptions() if options.kv_bits is None else options)
    session: ModelSession[Any] = ModelSession(model.model, options, cache=found.layers)
    logits = session.logits([*IDS, 9])
    assert session.computed == 1
    assert mx.array_equal(logits, filled(model, options, rotating).logits([*IDS, 9]))
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize(
    "architecture", ["gemma3n", "qwen3_next", "mamba2", "falcon_h1", "lfm2", "recurrent_gemma"]
)
def test_windows_and_recurrent_states_are_read_as_they_were_written(
    model: LanguageModel[Any], tmp_path: Path, architecture: str
) -> None:
    model = replace(model, model=zoo_model(architecture), folder=None)
    ids = [token % VOCABULARY for token in range(3, 100)]
    session: ModelSession[Any] = ModelSession(model.model)
    session.settle(ids)
    path = tmp_path / "a.safetensors"
    write_prompt_cache(path, session.layers, ids, model)
    found = read_prompt_cache(path, model)
    again: ModelSession[Any] = ModelSession(model.model, cache=found.layers)
    assert again.held == ids
    logits = again.logits([*ids, 9])
    assert again.computed == 1
    assert mx.array_equal(logits, session.logits([*ids, 9]))


def test_what_the_target_found_likely_comes_with_the_cache(
    model: LanguageModel[Any], tmp_path: Path
) -> None:
    """It is what a store learns from passes over the same ids, whatever the steps are."""
    session, store = TargetModelSession(model.model), LogitStore()
    steps: list[int] = []
    learn_text(session, IDS * 30, store, steps.append)
    assert steps == [128, 52]
    path = tmp_path / "a.safetensors"
    write_prompt_cache(path, session.layers, IDS * 30, model, logits=store)
    found = read_prompt_cache(path, model)
    assert found.logits is not None
    assert found.logits.to_bytes() == store.to_bytes()
    logits = TargetModelSession(model.model).logits(IDS * 30)
    after = store.after(tail_of(IDS), 3)  # the latest row of these ids
    assert after is not None
    assert after[0][0] == int(mx.argmax(logits[-1]))
    assert read_prompt_cache(written(tmp_path / "b.safetensors", model), model).logits is None


def test_mlx_lm_reads_our_files(model: LanguageModel[Any], tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", model)
    layers, told = load_prompt_cache(str(path), return_metadata=True)
    assert told["model"] == str(model.folder)
    assert told["tokenizer_config"] == "{}"
    theirs = model.model(mx.array([[9]]), cache=layers)[0]
    assert mx.allclose(theirs, model.model(mx.array([[*IDS, 9]]))[0, -1:], atol=1e-4)


def test_files_of_mlx_lm_are_read(
    model: LanguageModel[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.safetensors"
    arguments = ["--model", model.folder, "--prompt", "Zażółć", "--prompt-cache-file", path]
    monkeypatch.setattr(sys, "argv", ["mlx_lm.cache_prompt", *map(str, arguments)])
    cache_prompt.main()
    found = read_prompt_cache(path, model)
    assert found.ids is None
    assert found.layers[0].offset == len(model.tokenizer.encode("Zażółć"))
    with pytest.raises(IncompatibleError, match="is of the model"):
        read_prompt_cache(path, replace(model, folder=tmp_path))


def test_a_file_of_another_model_or_tokenizer_is_refused(
    model: LanguageModel[Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "a.safetensors", model)
    other = LanguageModel[Any].from_folder(
        write_model(tmp_path / "seed", vocabulary_size=340, seed=1)
    )
    with pytest.raises(IncompatibleError, match=r"other weights.*cache-prompt"):
        read_prompt_cache(path, other)
    smaller = LanguageModel[Any].from_folder(write_model(tmp_path / "size", vocabulary_size=300))
    with pytest.raises(FingerprintError, match="was built for tokenizer"):
        read_prompt_cache(path, smaller)


def test_any_flipped_byte_is_found(model: LanguageModel[Any], tmp_path: Path) -> None:
    """Only the padding of the header means nothing."""
    sound = written(tmp_path / "a.safetensors", model).read_bytes()
    path, draw = tmp_path / "b.safetensors", Random(1)
    header = 8 + int.from_bytes(sound[:8], "little")
    places = [*draw.sample(range(header), 60), *draw.sample(range(header, len(sound)), 60)]
    for place in places:
        if sound[place : place + 1] == b" ":
            continue
        broken = bytearray(sound)
        broken[place] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        with pytest.raises((BundleError, IncompatibleError)):
            read_prompt_cache(path, model)
    for length in (0, 5, header - 1, header, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(BundleError):
            read_prompt_cache(path, model)


def test_names_and_places_that_cannot_be_used(model: LanguageModel[Any], tmp_path: Path) -> None:
    with pytest.raises(MissingAssetError, match="cache-prompt"):
        read_prompt_cache(tmp_path / "none.safetensors", model)
    with pytest.raises(UsageError, match=r"ends in \.safetensors"):
        read_prompt_cache(tmp_path / "none.bin", model)
    with pytest.raises(UsageError, match="cannot be written"):
        written(tmp_path / "missing" / "a.safetensors", model)
