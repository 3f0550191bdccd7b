"""How much memory models and their caches may take, by what mlx tells of its device."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from tokalign.errors import UsageError
from tokalign.names import memory


def test_on_a_card_its_own_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and contexts are there, whatever the machine has."""
    card = 24 << 30
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "a card", "total_memory": card})
    assert memory.machine_memory() == card
    assert memory.working_set() < card
    with pytest.raises(UsageError, match=r"has 25\.8 GB of memory"):
        memory.require_bytes(card + 1)


@pytest.mark.parametrize("header", [b"[" * 200_000, b"{}", b"[1]", b'{"a": 5}'])
def test_weights_whose_header_is_damaged_take_what_their_file_does(
    tmp_path: Path, header: bytes
) -> None:
    data = len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(data)
    counted = 0 if header == b"{}" else len(data)
    assert memory.weights_bytes(tmp_path, dtype="float32") == counted


def test_on_a_mac_weights_and_caches_may_take_what_metal_recommends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is two thirds of a small memory, and three quarters of a large one."""
    told = {"memory_size": 16 << 30, "max_recommended_working_set_size": 11453251584}
    monkeypatch.setattr(mx, "device_info", dict)
    elsewhere = memory.machine_memory()
    monkeypatch.setattr(mx, "device_info", lambda: told)
    assert memory.working_set() == 11453251584
    assert memory.machine_memory() == elsewhere
