"""Gemma 4's assistants: they read the target's own keys, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zoo
from assistants import ORDERED, TEXT, assistant_config, random_assistant, write_assistant
from drafter_cases import rounds_that_lose_nothing
from random_models import rounds_of

from tokalign.errors import BundleError, IncompatibleError
from tokalign.runtime.draft.trained import with_trained
from tokalign.runtime.mlx.drafter_folder import named_drafter, read_drafter
from tokalign.runtime.mlx.gemma4_assistant import Gemma4Assistant
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.options import CacheOptions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4_text", "gemma4"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("branches", "ordered"), [(True, False), (False, False), (True, True)])
def test_nothing_is_lost(name: str, temperature: float, branches: bool, ordered: bool) -> None:
    """The target's cache is brought up to date for the assistant, in the middle of a round."""
    target = zoo.zoo_model(name)
    assistant = random_assistant(target, ordered=ordered)
    rounds = rounds_that_lose_nothing(
        target, temperature, lambda *_: [assistant], tokens=40, branches=branches
    )
    assert sum(one.draft_passes > 0 for one in rounds) >= len(rounds) - 2
    assert any(one.accepted for one in rounds)


@pytest.mark.parametrize("kind", ["gemma4_text", "gemma4_unified"])  # E4B and others, 12B
def test_a_folder_is_read_by_what_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target: Any = zoo.zoo_model("gemma4_text")
    monkeypatch.setattr(target, "model_type", kind)
    write_assistant(tmp_path, random_assistant(target), assistant_config(target))

    class Loaded:
        model, folder = target, None

    loaded: Any = Loaded()
    assert isinstance(named_drafter(tmp_path, loaded), Gemma4Assistant)


GARBLED = {kind: {"rope_theta": "x"} for kind in ("sliding_attention", "full_attention")}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"use_ordered_embeddings": True}, BundleError, "groups of ids"),
        ({"use_vision": True}, BundleError, "use_vision"),
        ({"backbone_hidden_size": 96}, IncompatibleError, "width 96"),
        ({"text_config": {**TEXT, "vocab_size": 96}}, IncompatibleError, "with 96 ids"),
        ({"text_config": {}}, BundleError, "num_hidden_layers"),
        ({"text_config": {**TEXT, "hidden_size": "x"}}, BundleError, "incompatible function"),
        ({"text_config": {**TEXT, "rope_parameters": GARBLED}}, BundleError, "incompatible"),
        ({"text_config": {**TEXT, "head_dim": 48}}, IncompatibleError, "of a kind"),
    ],
)
def test_what_cannot_be_run_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    target = zoo.zoo_model("gemma4_text")
    config = assistant_config(target)
    write_assistant(tmp_path, random_assistant(target), config)
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(error, match=message) as refused:
        read_drafter(tmp_path, target)
    assert "\n" not in str(refused.value)
    with pytest.raises(IncompatibleError, match="llama"):
        read_drafter(
            write_assistant(tmp_path, random_assistant(target), config), zoo.zoo_model("llama")
        )


def test_a_quantized_cache_is_refused() -> None:
    target = zoo.zoo_model("gemma4_text")
    assistant = random_assistant(target)
    options = CacheOptions(kv_bits=8, quantized_kv_start=0)
    session = TargetModelSession(target, options, watch=assistant.watch)
    drafter = with_trained(assistant.session(session), sampler=None)
    with pytest.raises((IncompatibleError, NotImplementedError), match=r"kv_bits|quantized"):
        rounds_of(drafter, session, prompt=[5, 3, 8])


@pytest.mark.parametrize("wrong", [zoo.VOCABULARY, 1 << 31])
def test_an_order_of_ids_that_are_none_is_refused(wrong: int, tmp_path: Path) -> None:
    target = zoo.zoo_model("gemma4_text")
    assistant = random_assistant(target, ordered=True)
    assistant.masked_embedding.token_ordering[3] = wrong
    folder = write_assistant(tmp_path, assistant, assistant_config(target, **ORDERED))
    with pytest.raises(BundleError, match="orders ids"):
        read_drafter(folder, target)
