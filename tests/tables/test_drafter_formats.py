"""The format of a drafter, told from its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from tokalign.tables.drafter_formats import DrafterFormat, drafter_format
from tokalign.tables.eagle3_config import Eagle3Config


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dflash_config": {}}, DrafterFormat.DFLASH),
        ({"architectures": ["DFlashDraftModel"], "draft_vocab_size": 9}, DrafterFormat.DFLASH),
        ({"dflash_config": {"selector_rank": 4}}, DrafterFormat.DFLASH_2),
        ({"dflash_config": {"projector_type": "dspark"}}, DrafterFormat.DSPARK),
        ({"architectures": ["Qwen3DSparkModel"]}, DrafterFormat.DSPARK),
        ({"speculators_model_type": "eagle3"}, DrafterFormat.EAGLE_3),
        ({"draft_vocab_size": 9}, DrafterFormat.EAGLE_3),
        ({"architectures": ["Qwen3Eagle3Model"]}, DrafterFormat.EAGLE_3),
        ({"architectures": ["PEagleDraftModel"], "draft_vocab_size": 9}, None),
        ({"speculators_model_type": "mtp"}, DrafterFormat.MTP),
        ({"model_type": "muse_glimmer_assistant"}, DrafterFormat.DFLASH),
        ({"backbone_hidden_size": 9}, DrafterFormat.GEMMA_4),
        ({"model_type": "qwen3_5_mtp"}, DrafterFormat.MTP),
        ({"model_type": "llama"}, None),
    ],
)
def test_a_configuration_has_a_format(config: dict[str, Any], told: DrafterFormat | None) -> None:
    assert drafter_format(config) is told


@pytest.mark.parametrize("odd", [None, 3, "x", ["x"], {"x": 1}])
@pytest.mark.parametrize(
    "key", ["format", "speculators_model_type", "architectures", "dflash_config", "model_type"]
)
def test_no_value_of_another_type_ends_in_an_exception(key: str, odd: Any) -> None:
    assert drafter_format({key: odd}) in (None, DrafterFormat.DFLASH)


def test_rope_parameters_come_before_what_older_programs_read() -> None:
    """As for a target with a base for each type of layer, of which `speculators` takes one."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64)
    config = {**sizes, "num_attention_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5e5}
    config["max_position_embeddings"] = 64
    base = {"sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"}}
    assert Eagle3Config.from_json(config).rope_theta == 5e5
    assert Eagle3Config.from_json(config | {"rope_parameters": base}).rope_theta == 1e4
    assert Eagle3Config.from_json(config | {"rope_theta": None}).rope_theta == 1e4
