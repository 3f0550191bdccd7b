"""Every command on the demo pair, as it is typed in a folder with a text, notes and a model."""

from __future__ import annotations

from pathlib import Path

from places import DEMO
from polish import SENTENCES

TARGET, DRAFT = str(DEMO / "target"), str(DEMO / "draft")
LINES = [sentence.replace("\n", " ") for sentence in SENTENCES]
TABLE = "tables/target/pl.dictionary.tok"

_DECODE = "--target TARGET --ignore-chat-template"
_TINY = "--window 16 --positions 64 --held-out 16 --width 8 --candidates 0 --batch 16"
_TYPED = {
    "check": "--target TARGET --draft DRAFT a.txt",
    "decode": f"{_DECODE} -p Wisła -m 4",
    "chat": f"{_DECODE} -m 4 --no-calibrate",
    "build": "--target TARGET --dictionary-only a.txt --language pl --output tables",
    "learn": "notes --name notes --target TARGET",
    "train": f"--target TARGET a.txt --output drafter --labels text --evaluations 1 {_TINY}",
    "tables show": "TABLE",
    "tables verify": "TABLE",
    "tables push": "TABLE model",
    "tables pull": "model",
    "tables forget": "notes",
    "calibrate": "--target TARGET --budget 1",
    "bench": "--target TARGET a.txt --limit 1 -m 4 --method copy -k 2",
}
_PLACES = {"TARGET": TARGET, "DRAFT": DRAFT, "TABLE": TABLE}


def words(line: str) -> list[str]:
    """A command line as a list."""
    return [_PLACES.get(word, word) for word in line.split()]


COMMANDS = {name: words(f"{name} {line}") for name, line in _TYPED.items()}
"""All but `serve`, which ends by a signal alone."""


def fill(folder: Path) -> None:
    """Write what the commands read."""
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "model").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("".join(f"{line}\n\n" for line in LINES))
