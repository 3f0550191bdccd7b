"""Weights: number formats, adapters, models with own code, and wired memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import fuse
from mlx_lm.convert import convert
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model
from random_models import random_model

from tokalign.errors import IncompatibleError, MissingAssetError, OutputError, UsageError
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx import machine, weights
from tokalign.runtime.mlx.machine import Wiring
from tokalign.runtime.mlx.weights import content_fingerprint, default_dtype, load_weights
from tokalign.tokenizer.vocabulary import TargetId


@pytest.mark.parametrize(("device", "expected"), [(mx.cpu, "float32"), (mx.gpu, None)])
def test_a_cpu_computes_in_float32(
    device: mx.DeviceType, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=device))
    assert default_dtype() == expected


def test_a_model_that_memory_has_no_room_for_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is ...")

    monkeypatch.setattr(weights, "load_model", full)
    with pytest.raises(RuntimeError, match="malloc"):
        load_weights(tmp_path)


def test_overlapping_generations_set_the_wired_limit_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits: list[str] = []

    @contextmanager
    def limit(_model: object) -> Iterator[None]:
        print("[WARNING] as mlx-lm's own function prints it")
        limits.append("set")
        yield
        limits.append("set back")

    monkeypatch.setattr(machine, "wired_limit", limit)
    wired = Wiring()
    first, second = wired(None), wired(None)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert limits == ["set"]
    second.__exit__(None, None, None)
    assert limits == ["set", "set back"]
    assert capsys.readouterr().out == "", "stdout has the answer alone, which may be JSON"


def test_a_fingerprint_reads_no_view_of_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would move all of it to the host, and passes would read it there."""
    made, read, listed = random_model.__wrapped__(), list[bool](), mx.array.tolist
    made.set_dtype(mx.float16)
    made.lm_head = made.lm_head.to_quantized(group_size=32, bits=8)

    def noted(array: mx.array) -> Any:
        read.append(memoryview(array).contiguous)
        return listed(array)

    monkeypatch.setattr(mx.array, "tolist", noted)
    content_fingerprint(made)
    assert len(read) == len(tree_flatten(made.parameters()))
    assert all(read)


# -- what mlx-lm's own tools wrote, adapters, and models with own code ----------------------------

LORA = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.up_proj"]}
IDS = mx.array([[5, 17, 3, 40]])


@pytest.fixture(scope="module")
def model(models: dict[str, str]) -> Path:
    return Path(models["target"])


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mlx_lm.lora` writes, with random weights in place of trained ones."""
    folder = tmp_path_factory.mktemp("adapter")
    trained, _ = load_model(model)
    trained.freeze()
    linear_to_lora_layers(trained, 2, LORA)
    mx.random.seed(1)
    adapters = {
        name: mx.random.normal(weight.shape) * 0.1
        for name, weight in tree_flatten(trained.trainable_parameters())
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), adapters)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_changes_the_model_as_in_mlx_lm(model: Path, adapter: Path) -> None:
    ours, _ = load_weights(model, adapter=adapter)
    theirs = load_adapters(load_model(model)[0], str(adapter))
    theirs.eval()
    plain, _ = load_weights(model)
    assert mx.array_equal(ours(IDS), theirs(IDS))
    assert not mx.allclose(ours(IDS), plain(IDS), atol=1e-2)


def test_what_fuse_and_convert_write_loads(
    model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, converted = tmp_path / "fused", tmp_path / "converted"
    arguments = ["--model", model, "--adapter-path", adapter, "--save-path", fused]
    monkeypatch.setattr(sys, "argv", ["mlx_lm.fuse", *map(str, arguments)])
    fuse.main()
    one, other = load_weights(fused)[0], load_weights(model, adapter=adapter)[0]
    assert mx.allclose(one(IDS), other(IDS), atol=1e-3)
    convert(str(model), str(converted), quantize=True, q_group_size=32, q_bits=8)
    quantized: LanguageModel[TargetId] = LanguageModel.from_folder(converted)
    assert any(name.endswith("scales") for name, _ in tree_flatten(quantized.model.parameters()))
    original: LanguageModel[TargetId] = LanguageModel.from_folder(model)
    assert quantized.tokenizer.fingerprint == original.tokenizer.fingerprint
    assert mx.abs(quantized.model(IDS) - original.model(IDS)).max() < 0.5


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", "{", "enclosed in double quotes"),
        ("config.json", "[]", "not a mapping"),
        ("config.json", "{}", "model_type"),
        ("config.json", {"hidden_size": "x"}, "operand"),
        ("config.json", {"layer_types": ["full_attention"] * 99}, "Missing 8"),
        ("config.json", {"quantization": {"bits": 4}}, "group_size"),
        ("config.json", {"hidden_size": 0}, "division by zero"),
        ("config.json", {"vocab_size": 0}, "AssertionError"),
        ("config.json", {"rope_theta": "10000"}, "(rope(): incompatible function arguments.)"),
        ("config.json", {"rope_theta": None}, "Neither base nor freqs"),
        ("config.json", {"rope_theta": -1}, "its logits tell nothing"),
        ("config.json", {"rope_theta": float("nan")}, "its logits tell nothing"),
        ("config.json", {"rms_norm_eps": float("inf")}, "its logits tell nothing"),
        ("model.safetensors", "half a file", "load_safetensors"),
    ],
)
def test_a_damaged_folder_is_one_line(
    name: str, content: object, told: str, model: Path, tmp_path: Path
) -> None:
    folder = copytree(model, tmp_path / "damaged")
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / name).read_text()) | content)
    (folder / name).write_text(str(content))
    with pytest.raises(MissingAssetError, match="fetch it again") as refused:
        load_weights(folder)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_that_mlx_lm_takes_for_a_pattern_is_blamed(model: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingAssetError, match="takes for a pattern"):
        load_weights(copytree(model, tmp_path / "models [old]"))


@pytest.mark.parametrize(
    "told",
    ["filesystem error: cannot create directories: Read-only", "[Compile::eval_cpu] Failed to"],
)
def test_a_model_is_not_blamed_for_a_temporary_folder(
    told: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU mlx writes what it compiles there, with the first pass."""

    def fail(_model: object) -> None:
        raise RuntimeError(told)

    monkeypatch.setattr(weights, "_require_logits", fail)
    with pytest.raises(OutputError, match=r"set TMPDIR") as refused:
        load_weights(model)
    assert told in str(refused.value)


def test_what_is_no_model_or_adapter_is_refused(model: Path, adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(MissingAssetError, match=r"mlx_lm\.convert"):
        load_weights(tmp_path)
    with pytest.raises(MissingAssetError, match=r"lacks adapter_config\.json, adapters\.safe"):
        load_weights(model, adapter=tmp_path)
    other = copytree(adapter, tmp_path / "other")
    mx.save_safetensors(str(other / "adapters.safetensors"), {"model.x.lora_a": mx.zeros((2, 2))})
    with pytest.raises(IncompatibleError, match="does not fit this model"):
        load_weights(model, adapter=other)


def test_code_of_a_model_runs_only_if_it_is_trusted(model: Path, tmp_path: Path) -> None:
    folder = copytree(model, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_file": "own.py"}))
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from mlx_lm.models.llama import Model, ModelArgs\n"
        "Path(__file__).with_suffix('.ran').touch()\n"
    )
    with pytest.raises(UsageError, match=r"own\.py.*--trust-remote-code"):
        load_weights(folder)
    assert not (folder / "own.ran").exists()
    trusted, _ = load_weights(folder, trust_remote_code=True)
    assert (folder / "own.ran").exists()
    assert mx.array_equal(trusted(IDS), load_weights(model)[0](IDS))


def test_the_content_of_weights_has_a_fingerprint(model: Path, adapter: Path) -> None:
    """It is that of the values, in whatever number format."""
    first, second = load_weights(model)[0], load_weights(model)[0]
    halves = load_weights(model, dtype="float16")[0]
    assert len({content_fingerprint(one) for one in (first, second, halves)}) == 1
    second.model.layers[0].mlp.up_proj.weight *= 1.5
    adapted = load_weights(model, adapter=adapter)[0]
    assert len({content_fingerprint(one) for one in (first, second, adapted)}) == 3
