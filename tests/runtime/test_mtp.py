"""MTP layers: read from a target's checkpoint, found by themselves, and nothing is lost by them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import zoo
from drafter_cases import rounds_that_lose_nothing
from eagle_drafters import Knowing
from mlx.utils import tree_flatten
from mtp_layers import published_weights, random_mtp, write_mtp

from tokalign.errors import BundleError, IncompatibleError
from tokalign.runtime.mlx.drafter_folder import find_drafter, named_drafter, read_drafter
from tokalign.runtime.mlx.mtp import MtpDrafter
from tokalign.tables.drafter_formats import GOES_ON_NORMED


class KnowingMtp(Knowing, MtpDrafter):
    pass


@pytest.mark.parametrize("name", GOES_ON_NORMED)
def test_a_checkpoint_s_layer_is_read(name: str, tmp_path: Path) -> None:
    """Whatever is stacked, joined, split or about 0 in it."""
    target = zoo.zoo_model(name)
    drafter = random_mtp(target)
    weights = {"model.norm.weight": mx.zeros((4,)), **published_weights(drafter, target)}
    read = read_drafter(write_mtp(tmp_path, weights, target), target)
    expected = dict(tree_flatten(drafter.parameters()))
    found = dict(tree_flatten(read.parameters()))
    assert found.keys() == expected.keys()
    assert all(mx.allclose(found[key], expected[key], atol=1e-6) for key in found)


@pytest.mark.parametrize("name", ["qwen3_5", "glm4_moe_lite"])
def test_it_is_found_in_the_target_s_folder(name: str, tmp_path: Path) -> None:
    target = zoo.zoo_model(name)
    with_folder: Any = SimpleNamespace(model=target, folder=tmp_path)
    write_mtp(tmp_path, {"model.norm.weight": mx.zeros((4,))}, target)
    assert find_drafter(with_folder) is None
    with pytest.raises(BundleError, match="conversions for mlx-lm drop"):
        named_drafter(tmp_path, with_folder)
    write_mtp(tmp_path, published_weights(random_mtp(target), target), target)
    assert isinstance(find_drafter(with_folder), MtpDrafter)


def test_a_damaged_file_beside_the_target_is_noted(tmp_path: Path) -> None:
    target, notes = zoo.zoo_model("qwen3_5"), list[str]()
    (write_mtp(tmp_path, {}, target) / "adapters.safetensors").write_bytes(b"\xff" * 20)
    with_folder: Any = SimpleNamespace(model=target, folder=tmp_path)
    assert find_drafter(with_folder, note=notes.append) is None
    [told] = notes
    assert "adapters.safetensors" in told


def test_a_folder_that_holds_it_alone_is_read(tmp_path: Path) -> None:
    """As `mlx-vlm` splits a checkpoint: no prefix, and 1 is added already."""
    target = zoo.zoo_model("qwen3_5")
    weights = {
        name.removeprefix("mtp."): weight + 1 if weight.ndim == 1 else weight
        for name, weight in published_weights(random_mtp(target), target).items()
        if name.startswith("mtp.")
    }
    read = read_drafter(write_mtp(tmp_path, weights, target), target)
    assert mx.allclose(read.norm.weight, random_mtp(target).norm.weight, atol=1e-6)


@pytest.mark.parametrize("added", [0, 1])
def test_it_is_read_beside_a_conversion(added: int, tmp_path: Path) -> None:
    """As `mtplx` publishes it, in bits of its own, whether 1 was added to norms or not."""
    target = zoo.zoo_model("qwen3_5")
    original = published_weights(random_mtp(target), target)
    quantized = {"mtp.fc": 4, "mtp.layers.0.mlp.down_proj": 8}
    weights: dict[str, mx.array] = {}
    for name, of in original.items():
        stem, bits = name.removesuffix(".weight"), quantized.get(name.removesuffix(".weight"))
        if bits is not None:
            parts = mx.quantize(of, group_size=32, bits=bits)
            weights |= dict(zip((name, f"{stem}.scales", f"{stem}.biases"), parts, strict=True))
        elif name.startswith("mtp."):
            weights[name] = of + added if of.ndim == 1 else of
    turned = {"model.layers.0.linear_attn.conv1d.weight": mx.zeros((8, 4, 1))}
    write_mtp(tmp_path, turned, target, quantization={"group_size": 64, "bits": 3})
    (tmp_path / "mtp").mkdir()
    mx.save_safetensors(str(tmp_path / "mtp" / "weights.safetensors"), weights)
    with_folder: Any = SimpleNamespace(model=target, folder=tmp_path)
    read, whole = find_drafter(with_folder), random_mtp(target)
    assert isinstance(read, MtpDrafter)
    assert (read.fc.bits, read.layers[0].mlp.down_proj.bits) == (4, 8)
    for ours, theirs in ((read.norm, whole.norm), (read.hidden_norm, whole.hidden_norm)):
        assert mx.allclose(ours.weight, theirs.weight, atol=1e-6)
    for name in ("input_layernorm", "post_attention_layernorm"):
        ours, theirs = read.layers[0][name], whole.layers[0][name]
        assert mx.allclose(ours.weight, theirs.weight, atol=1e-6)


def test_a_folder_of_glm_s_alone_is_read(tmp_path: Path) -> None:
    """As `mlx-vlm` splits a checkpoint of GLM-4.7-Flash."""
    target = zoo.zoo_model("glm4_moe_lite")
    drafter = random_mtp(target)
    own = {"fc": "eh_proj", "embedding_norm": "enorm", "hidden_norm": "hnorm"}
    own |= {"norm": "shared_head_norm", "layers": "mtp_block"}
    weights = {"lm_head.weight": mx.zeros((4, 4)), "model.embed_tokens.weight": mx.zeros((4, 4))}
    for name, of in tree_flatten(drafter.parameters()):
        first, _, rest = name.partition(".")
        weights[f"model.{own[first]}.{rest.removeprefix('0.')}"] = of
    folder = write_mtp(tmp_path, weights, target)
    (folder / "config.json").write_text('{"model_type": "glm4_moe_lite_mtp"}')
    read = named_drafter(folder, SimpleNamespace(model=target))
    expected = dict(tree_flatten(drafter.parameters()))
    assert all(mx.allclose(of, expected[key]) for key, of in tree_flatten(read.parameters()))


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_a_folder_of_speculators_is_read(name: str, tmp_path: Path) -> None:
    target, drafter = zoo.zoo_model(name), random_mtp(zoo.zoo_model(name))
    own = {"fc": "input_proj", "norm": "final_layernorm", "layers.0.": ""}
    own |= {"pre_fc_norm_hidden": "hidden_layernorm", "pre_fc_norm_embedding": "token_layernorm"}
    weights = {}
    for key, of in published_weights(drafter, target).items():
        if key.startswith("mtp."):
            stem = key.removeprefix("mtp.")
            first = next(part for part in own if stem.startswith(part))
            weights[f"mtp_layers.0.{own[first]}{stem.removeprefix(first)}"] = of
    config = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"]}
    read = read_drafter(write_mtp(tmp_path, weights, target, **config), target)
    expected = dict(tree_flatten(drafter.parameters()))
    found = dict(tree_flatten(read.parameters()))
    assert found.keys() == expected.keys()
    assert all(mx.allclose(found[key], expected[key], atol=1e-6) for key in found)


def test_other_targets_are_refused() -> None:
    with pytest.raises(IncompatibleError, match="llama"):
        MtpDrafter(zoo.zoo_model("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("name", GOES_ON_NORMED)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_is_lost(name: str, temperature: float) -> None:
    target = zoo.zoo_model(name)

    def networks(plain: list[int], after: int) -> list[MtpDrafter]:
        text = [*plain[:12], 1, 2, *plain[14:]]
        return [random_mtp(target), KnowingMtp(target).know(text, after)]

    assert len(rounds_that_lose_nothing(target, temperature, networks)) < 16
