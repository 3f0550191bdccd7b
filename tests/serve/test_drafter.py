"""A served model's recurrent drafter, alone and beside requests that are decoded in a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from places import DEMO
from random_drafters import taught_drafter
from served import complete, demo_settings, metric, serving

from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.drafter_folder import save_drafter, target_fingerprints
from tokalign.runtime.options import DraftingOptions

PROMPT, OTHER = "Wisła jest", "Zima w górach"


@pytest.mark.slow
def test_it_drafts_for_requests_and_changes_nothing(tmp_path: Path) -> None:
    with serving(demo_settings(draft_model=None)) as server:
        expected = {text: complete(server, text).json["choices"][0] for text in (PROMPT, OTHER)}
    target: LanguageModel[Any] = LanguageModel.from_folder(DEMO / "target", dtype="float32")
    ids = target.tokenizer.encode(PROMPT + expected[PROMPT]["text"])
    drafter = taught_drafter(target.model, ids, steps=60)
    save_drafter(tmp_path / "drafter", drafter, target_fingerprints(target))
    settings = demo_settings(
        draft_model=None,
        drafting=DraftingOptions(
            method="drafter", drafter=tmp_path / "drafter", num_draft_tokens=3
        ),
    )
    with serving(settings) as server:
        alone = complete(server, PROMPT).json
        assert alone["choices"][0]["text"] == expected[PROMPT]["text"]
        accepted = alone["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
        assert accepted > 3
        with ThreadPoolExecutor(4) as pool:
            texts = [PROMPT, OTHER] * 2
            replies = list(pool.map(lambda text: complete(server, text), texts))
        for text, reply in zip(texts, replies, strict=True):
            assert reply.json["choices"][0]["text"] == expected[text]["text"]
        assert metric(server, "tokalign_accepted_tokens_total") >= accepted
