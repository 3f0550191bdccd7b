"""The format of a drafter, told from its configuration."""

from __future__ import annotations

from typing import Any

import pytest

from tokalign.tables.drafter_formats import DrafterFormat, drafter_format


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dflash_config": {}}, DrafterFormat.DFLASH),
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
