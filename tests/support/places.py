"""Where tests find what comes with the repository, and the shared data where present."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"


def shared_folder() -> Path | None:
    """Shared corpora, tokenizers and models: $TOKALIGN_SHARED, or ../shared/data by the repo."""
    folder = Path(os.environ.get("TOKALIGN_SHARED", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def documented_attacks(suite: str) -> int:
    """How many attacks of a suite tests/hostile/README.md claims at least."""
    rows = (ROOT / "tests" / "hostile" / "README.md").read_text("utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {suite} |")]
    return int(row.split("|")[2].replace(",", ""))
