"""Which number format weights are computed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import mlx.core as mx
import pytest

from tokalign.runtime.mlx import weights
from tokalign.runtime.mlx.weights import Wiring, default_dtype


@pytest.mark.parametrize(("device", "expected"), [(mx.cpu, "float32"), (mx.gpu, None)])
def test_a_cpu_computes_in_float32(
    device: mx.DeviceType, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=device))
    assert default_dtype() == expected


def test_overlapping_generations_set_the_wired_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[str] = []

    @contextmanager
    def limit(_model: object) -> Iterator[None]:
        limits.append("set")
        yield
        limits.append("set back")

    monkeypatch.setattr(weights, "wired_limit", limit)
    wired = Wiring()
    first, second = wired(None), wired(None)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert limits == ["set"]
    second.__exit__(None, None, None)
    assert limits == ["set", "set back"]
