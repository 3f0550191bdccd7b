"""A trained drafter is judged by its config, and by the list of its own ids, before a download."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import run
from fake_hub import Hub, serve_hub
from tokenizer_files import byte_level_document

LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 257,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
}
BLOCK = {
    **LAYERS,
    "architectures": ["DFlashDraftModel"],
    "num_target_layers": 12,
    "dflash_config": {"target_layer_ids": [1, 5, 9], "mask_token_id": 1},
}
BEAM = {**LAYERS, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 128}
NESTED = {
    "speculators_model_type": "dspark",
    "aux_hidden_state_layer_ids": [2, 6, 10],
    "draft_vocab_size": 257,
    "block_size": 4,
    "mask_token_id": 1,
    "transformer_layer_config": LAYERS,
}
REDRAFTER = {"model_type": "recurrent_drafting_drafter", "rnn": True}
TARGET = {"hidden_size": 64, "num_hidden_layers": 12, "vocab_size": 257}


def weights(ids: Sequence[int]) -> bytes:
    """A weights file with the list of a drafter's own ids, after a large matrix."""
    large = bytes(1 << 20)
    distances = (np.asarray(ids) - np.arange(len(ids))).astype("<i8").tobytes()
    header = json.dumps(
        {
            "fc.weight": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]},
            "d2t": {
                "dtype": "I64",
                "shape": [len(ids)],
                "data_offsets": [1 << 20, (1 << 20) + len(distances)],
            },
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + large + distances


ASCII = weights(range(128))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A tokenizer of bytes and one pair, beside a config."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_document()))
    (folder / "config.json").write_text(json.dumps(TARGET))
    return folder


def written(folder: Path, config: Any, data: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(data)
    return folder


def judged(target: Path, drafter: object, text: str) -> Any:
    file = target.parent / "text.txt"
    file.write_text(text)
    return run("check", "--target", target, "--drafter", drafter, file, "--json", "--quiet").json


@pytest.mark.parametrize(
    ("config", "kind"), [(BLOCK, "DFlash"), (NESTED, "DSpark")], ids=["flat", "nested"]
)
def test_one_that_drafts_everything(config: Any, kind: str, target: Path, tmp_path: Path) -> None:
    found = judged(target, written(tmp_path / "it", config), "Zażółć gęślą jaźń.\n")
    assert found["verdict"].startswith(f"A good fit: a {kind} drafter that can draft 100.0%")
    assert "layers 1, 5, 9; its size fits" in found["verdict"]
    assert found["drafter_taps"] == [1, 5, 9]
    assert (found["drafter_coverage"], found["drafter_fits"]) == (1.0, True)
    assert list(found)[2] == "verdict"


@pytest.mark.parametrize("config", [BLOCK, BEAM, REDRAFTER])
def test_one_that_was_trained_here_for_another_tokenizer(
    config: Any, target: Path, tmp_path: Path
) -> None:
    folder = written(tmp_path / "it", config, ASCII)
    (folder / "training.json").write_text(json.dumps({"target": {"tokenizer": "0123"}}))
    assert "trained for another tokenizer" in judged(target, folder, "Ala.\n")["verdict"]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "qwen3_5", "text_config": {"mtp_num_hidden_layers": 1}}, "an MTP"),
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 1}, "an MTP"),
        (REDRAFTER, "a ReDrafter"),
    ],
)
def test_one_that_reads_the_last_hidden_state(
    config: Any, kind: str, target: Path, tmp_path: Path
) -> None:
    found = judged(target, written(tmp_path / "it", config), "a\n")
    assert found["verdict"].startswith(f"A good fit: {kind} drafter")
    assert "it reads the target's last hidden state" in found["verdict"]


@pytest.mark.parametrize(
    ("key", "ids", "taps"),
    [
        ("eagle_config", [1, 4], [1, 4]),
        ("eagle_config", [4, 1, 2], [1, 2, 4]),
        ("eagle_config", [2, 4], [1, 3]),
        ("eagle_config", [8, 10, 12], [7, 9, 11]),
        (None, [1, 4], [0, 3]),
        ("target_layer_ids", [3, 4], [3, 4]),
    ],
)
def test_layers_of_an_eagle_3_head_that_says_them(
    key: str | None, ids: list[int], taps: list[int], target: Path, tmp_path: Path
) -> None:
    """Beside other keys they are ids of layers whose inputs are read, in `eagle_config` where the
    first is above 1, too (SGLang #25454); DeepSpec's are those of outputs."""
    layers = {"eagle_aux_hidden_state_layer_ids": ids}
    own = {"eagle_config": {"eagle_config": layers}, "target_layer_ids": {"target_layer_ids": ids}}
    config = {**BEAM, "draft_vocab_size": 257, **(own[key] if key else layers)}
    found = judged(target, written(tmp_path / "it", config), "a\n")
    assert found["drafter_taps"] == taps


def test_what_its_own_vocabulary_covers_is_counted_in_the_text(
    target: Path, tmp_path: Path
) -> None:
    drafter = written(tmp_path / "it", BEAM, weights([*range(32, 127), *range(160, 193)]))
    english = judged(target, drafter, "a text\n")
    polish = judged(target, drafter, "źdźbło żółte\n")
    assert english["drafter_coverage"] == 1.0
    assert english["drafter_taps"] == [1, 5, 8]
    assert "as 128 ids are in its vocabulary" in english["verdict"]
    assert polish["drafter_coverage"] < 0.8
    assert polish["verdict"].startswith("A poor fit: an EAGLE-3 drafter")


def reading_layers(*taps: int) -> dict[str, Any]:
    return {"dflash_config": {"target_layer_ids": taps, "mask_token_id": 1}}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"num_target_layers": 36}, "with 36 layers of width 64, and this target has 12 layers"),
        ({"hidden_size": 96}, "with 12 layers of width 96, and this target has"),
        ({"vocab_size": 300}, "knows 300 ids, and this target has 257"),
        (reading_layers(1, 30), "layers 1, 30, and this target has 12"),
        (reading_layers(-5, 1), "layers -5, 1, and this target has 12"),
        (reading_layers(1, 1), "one of them twice, and this target has 12"),
    ],
)
def test_one_of_another_size(changed: Any, told: str, target: Path, tmp_path: Path) -> None:
    found = judged(target, written(tmp_path / "it", BLOCK | changed), "a\n")
    assert found["verdict"].startswith("It does not fit: ")
    assert told in found["verdict"]
    assert found["drafter_fits"] is False


MTP = {"model_type": "qwen3_5", "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (REDRAFTER | {"hidden_size": 96}, "width 96"),
        (REDRAFTER | {"hidden_size": 64, "vocab_size": 96}, "with 96 ids"),
        ({"backbone_hidden_size": 96}, "width 96"),
        ({"backbone_hidden_size": 64, "text_config": {"vocab_size": 96}}, "with 96 ids"),
        (MTP | {"text_config": {"mtp_num_hidden_layers": 1, "hidden_size": 96}}, "width 96"),
    ],
)
def test_one_of_the_last_hidden_state_of_another_target(
    config: Any, told: str, target: Path, tmp_path: Path
) -> None:
    found = judged(target, written(tmp_path / "it", config), "a\n")
    assert found["verdict"].startswith("It does not fit: ")
    assert told in found["verdict"]


@pytest.mark.parametrize("config", [MTP, {"backbone_hidden_size": 64}])
def test_one_for_targets_of_another_type(config: Any, target: Path, tmp_path: Path) -> None:
    (target / "config.json").write_text(json.dumps(TARGET | {"model_type": "llama"}))
    found = judged(target, written(tmp_path / "it", config), "a\n")
    assert (
        found["verdict"] == "It does not fit: it is none for a 'llama' model; give its own target."
    )


@pytest.mark.parametrize(
    "config",
    [
        {"n_embd": 64, "n_layer": 12},
        TARGET | {"text_config": "x"},
        TARGET | {"text_config": "\ud800"},
        TARGET | {"num_hidden_layers": "12"},
        TARGET | {"hidden_size": None},
        TARGET | {"vocab_size": [257]},
    ],
)
def test_a_target_that_names_its_sizes_otherwise(config: Any, target: Path, tmp_path: Path) -> None:
    (target / "config.json").write_text(json.dumps(config))
    found = judged(target, written(tmp_path / "it", BLOCK), "a\n")
    assert found["drafter_fits"] is None


def test_without_the_targets_config_no_sizes_are_compared(target: Path, tmp_path: Path) -> None:
    (target / "config.json").unlink()
    found = judged(target, written(tmp_path / "it", BLOCK), "a\n")
    assert "the target's config is not here" in found["verdict"]
    assert found["drafter_fits"] is None


def block_of(**own: object) -> dict[str, Any]:
    return BLOCK | {"dflash_config": BLOCK["dflash_config"] | own}


def named(network: str, **own: object) -> dict[str, Any]:
    """As the programs that train other networks write them."""
    return {**LAYERS, "architectures": [network], **own}


IS_NOT_RUN = "cannot be run", "fetch it again, use another drafter"
IS_GARBLED = "its config lacks or garbles", "fetch the drafter again"


OF_TORCHSPEC = {"num_target_layers": 1, "target_num_hidden_layers": 12, "draft_vocab_size": 257}
OTHERS: list[tuple[dict[str, Any], str]] = [
    (named("PEagleDraftModel", draft_vocab_size=128, mask_token_id=1), "says 'PEagleDraftModel'"),
    ({"speculators_model_type": "peagle", "draft_vocab_size": 128}, "says 'peagle'"),
    (named("LlamaForCausalLMEagle3", parallel_drafting=True, ptd_token_id=1), "parallel_drafting,"),
    (named("DFlashDraftModel", **OF_TORCHSPEC), "has target_num_hidden_layers, which this"),
    (named("Qwen3DSparkModel", **OF_TORCHSPEC), "has target_num_hidden_layers, which this"),
    (named("DFlashDraftModel", causal=True, block_size=8), "its settings outside dflash_config"),
    (named("Eagle3DeepseekV2ForCausalLM", kv_lora_rank=512, v_head_dim=64), "has kv_lora_rank, v_"),
    (named("Gemma4Eagle3Model", attention_k_eq_v=True, global_head_dim=64), "has attention_k_eq"),
    (named("Gemma4DSparkModel", model_type="gemma4_text", markov_rank=4), "of a gemma4_text, whi"),
    (block_of(projector_type="domino", gru_hidden_dim=8, emb_dim=4), "projector_type 'domino', "),
    (block_of(causal=True, block_size=8) | {"model_type": "laguna"}, "layers of a laguna, which"),
    (named("MiMoForCausalLM", model_type="mimo", num_nextn_predict_layers=1), "says 'MiMoForCau"),
]
"""Configurations of drafters that are not run, and what is said of them."""


@pytest.mark.parametrize(
    ("config", "data", "told"),
    [
        *((config, b"", [told]) for config, told in OTHERS),
        ([], b"", ["give the folder of a drafter"]),
        ({"architectures": ["LlamaForCausalLM"]}, b"", ["format (its config.json says 'LlamaFor"]),
        ({"architectures": 3}, b"", ["of a known format"]),
        (REDRAFTER | {"rnn": False}, b"", ["without recurrence", *IS_NOT_RUN]),
        (REDRAFTER | {"gated": True}, b"", ["gated, which this version", *IS_NOT_RUN]),
        ({"backbone_hidden_size": "64\n"}, b"", ["Expected `int", *IS_NOT_RUN]),
        ({"backbone_hidden_size": 64, "use_vision": True}, b"", ["use_vision, which", *IS_NOT_RUN]),
        (REDRAFTER | {"hidden_size": "64"}, b"", ["Expected `int", *IS_NOT_RUN]),
        ({"format": "tokalign recurrent drafter"}, b"", ["'tokalign recurrent", "tokalign train"]),
        (BEAM | {"hidden_act": "gelu"}, ASCII, ["of which only silu is run", *IS_NOT_RUN]),
        (BEAM | {"rms_norm_eps": 0.0}, ASCII, ["rms_norm_eps", *IS_NOT_RUN]),
        (
            BEAM | {"num_attention_heads": 7, "num_key_value_heads": 2},
            ASCII,
            ["7 heads for 2", *IS_NOT_RUN],
        ),
        (BEAM | {"unheard_of": 1}, ASCII, ["unheard_of, which this version", *IS_NOT_RUN]),
        (BEAM | {"num_attention_heads": 0}, ASCII, IS_GARBLED),
        *[
            (block_of(**{key: value}), b"", [key, *IS_NOT_RUN])
            for key in ("mask_token_id", "conv_kernel_size", "markov_rank", "block_size")
            for value in (-1, 10**30)
        ],
        (BEAM, b"", ["no safetensors file", "fetch it again"]),
        (BEAM, b"\xff" * 64, ["no safetensors file", "fetch it again"]),
        (BEAM, weights([])[:40], IS_NOT_RUN),
        (BEAM, weights([]), ["its d2t has 0 ids, and its head 128", "fetch it again"]),
        (BEAM, weights(range(5)), ["its d2t has 5 ids, and its head 128", "fetch it again"]),
        (BEAM, weights(range(128)).replace(b'"d2t"', b'"t2d"'), ["no d2t in its weights"]),
        ({**BLOCK, "vocab_size": 257, "draft_vocab_size": 3}, b"\x02" + bytes(7) + b"{}", ["d2t"]),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    config: Any, data: bytes, told: Sequence[str], target: Path, tmp_path: Path
) -> None:
    drafter = written(tmp_path / "it", config, data)
    run("check", "--target", target, "--drafter", drafter).is_refused(3, *told)


@pytest.mark.parametrize("names", [("drafter",), ("model-00001-of-00002", "model-00002-of-00002")])
def test_its_list_of_ids_is_found_in_any_of_its_files(
    names: Sequence[str], target: Path, tmp_path: Path
) -> None:
    drafter = written(tmp_path / "it", BEAM, ASCII)
    *others, last = names
    (drafter / "model.safetensors").rename(drafter / f"{last}.safetensors")
    for name in others:
        (drafter / f"{name}.safetensors").write_bytes(ASCII.replace(b'"d2t"', b'"t2d"'))
    (drafter / f"._{last}.safetensors").write_bytes(b"\0\x05\x16\x07")  # of macOS on another's disk
    assert "as 128 ids are in its vocabulary" in judged(target, drafter, "a\n")["verdict"]


def test_of_a_repository_its_list_of_ids_alone_is_downloaded(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": json.dumps(BEAM).encode(), "model.safetensors": ASCII}
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with serve_hub({"someone/eagle": files}, hub) as address:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
        found = judged(target, "someone/eagle", "żółw\n")
    assert found["drafter_coverage"] == pytest.approx(1 / 7, abs=1e-4)
    assert 0 < hub.sent < 5_000, "and none of its weights"
    assert not list((tmp_path / "hub").rglob("*.safetensors"))


def test_auto_is_refused_where_none_is_known(target: Path) -> None:
    refused = run("check", "--target", target, "--drafter", "auto")
    refused.is_refused(4, "no published drafter of")


def test_the_published_one_is_named(target: Path, tmp_path: Path) -> None:
    folder = target.rename(tmp_path / "Qwen3-8B-4bit")
    shown = run("check", "--target", folder, "--json").json
    assert shown["published_drafter"].startswith("z-lab/Qwen3-8B-DFlash-b16 (DFlash, MIT")
