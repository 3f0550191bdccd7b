"""A model's fingerprint tells its weights apart."""

from __future__ import annotations

from pathlib import Path

from lab.fingerprint import model_fingerprint


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    found = set()
    for content in (b"", b"a", b"b", b"a" * (1 << 20) + b"c", b"a" * (1 << 20) + b"d"):
        weights.write_bytes(content)
        found.add(model_fingerprint(tmp_path))
    assert len(found) == 5
