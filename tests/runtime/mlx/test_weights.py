"""Number formats, wired memory, and the reference BLAS, told by the files that are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from random_models import random_model

from tokalign.runtime.mlx import weights
from tokalign.runtime.mlx.weights import Wiring, default_dtype, remedy


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


WHEEL = "7f05-7f06 r-xp 0 08:01 1 /v/site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0"
OF_NUMPY = "7f07-7f08 r-xp 0 08:01 2 /v/numpy.libs/libscipy_openblas64_-32a4b2a6.so"
DEBIAN = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")
PRELOADED = f"7f09-7f0a r-xp 0 08:01 3 {DEBIAN.with_name('libopenblasp-r0.3.21.so')}"


def test_the_remedy_names_what_is_installed_or_what_to_install() -> None:
    here = remedy([WHEEL, OF_NUMPY], [DEBIAN])
    assert here is not None
    assert f"LD_PRELOAD={DEBIAN} tokalign" in here
    assert "apt install" not in here
    elsewhere = remedy([WHEEL], [])
    assert elsewhere is not None
    assert "apt install libopenblas0-pthread" in elsewhere
    assert "\n" not in elsewhere


def test_nothing_is_said_of_a_fast_blas_or_none() -> None:
    assert remedy([WHEEL, OF_NUMPY, PRELOADED], [DEBIAN]) is None
    assert remedy([OF_NUMPY, "7f00 [heap]", ""], [DEBIAN]) is None


@pytest.mark.skipif(sys.platform != "linux", reason="mlx computes on a GPU")
@pytest.mark.slow
def test_a_library_that_is_preloaded_takes_its_place() -> None:
    found = next(iter(Path("/usr/lib").glob("*/openblas-pthread/libopenblas.so.0")), None)
    if found is None:
        pytest.skip("needs libopenblas0-pthread")
    asked = "from tokalign.runtime.mlx.weights import slow_blas; print(slow_blas())"

    def said(library: str) -> str:
        given = {**os.environ, "LD_PRELOAD": library}
        ran = subprocess.run(
            [sys.executable, "-c", asked], env=given, capture_output=True, text=True, check=True
        )
        return ran.stdout

    assert str(found) in said("")
    assert said(str(found)).strip() == "None"


def test_a_curve_is_stale_once_another_blas_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(0)
    monkeypatch.setattr(weights, "slow_blas", lambda: None)
    fast = weights.machine_of(model)
    monkeypatch.setattr(weights, "slow_blas", lambda: "preload another one")
    assert weights.machine_of(model) != fast
    assert fast.mlx in weights.machine_of(model).mlx
