"""Every record names a program that made it, or says in its first line that it is history."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokalign.cli import GROUPS

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "lab" / "results").glob("*.md"))


def programs(text: str) -> list[str]:
    """What a record names that can be run, or is, in this tree."""
    modules = re.findall(r"(lab(?:\.[a-z_]+)+)", text)
    paths = re.findall(r"\b((?:lab|tests|tokalign|demo)/[a-z_/]+\.py)", text)
    targets = re.findall(r"`make ([a-z-]+)`", text)
    commands = {name for group in GROUPS.values() for name in group}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return [
        *(name for name in modules if (ROOT / (name.replace(".", "/") + ".py")).is_file()),
        *(path for path in paths if (ROOT / path).is_file()),
        *(name for name in targets if f"\n{name}:" in makefile),
        *(name for name in re.findall(r"tokalign ([a-z]+)", text) if name in commands),
    ]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_names_its_program_or_is_history(record: Path) -> None:
    text = record.read_text("utf-8")
    assert programs(text) or text.splitlines()[0].endswith("(history)")
