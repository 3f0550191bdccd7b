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
