"""Which number format weights are computed in."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest

from tokalign.runtime.mlx.weights import default_dtype


@pytest.mark.parametrize(("device", "expected"), [(mx.cpu, "float32"), (mx.gpu, None)])
def test_a_cpu_computes_in_float32(
    device: mx.DeviceType, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=device))
    assert default_dtype() == expected
