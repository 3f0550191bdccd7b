"""Table files as tests write them."""

from __future__ import annotations

from pathlib import Path

from tokalign.tables.bundle import Bundle, encode_bundle


def write_bundle(path: Path, bundle: Bundle) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_bundle(bundle))
