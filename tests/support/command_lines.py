"""One short run of every command, on the demo pair, in a folder with a text."""

from __future__ import annotations

from pathlib import Path

from places import DEMO
from polish import SENTENCES

DECODE = "--target TARGET --draft DRAFT --ignore-chat-template"
TINY = "--window 16 --positions 64 --held-out 16 --width 8 --candidates 0 --batch 16"
RUNS = {
    "check": "--target TARGET --draft DRAFT a.txt",
    "decode": f"{DECODE} -p Wisła -m 4 --html page.html",
    "chat": f"{DECODE} -m 4 --no-calibrate",
    "serve": "--target TARGET --port 0",
    "build": "--target TARGET --dictionary-only a.txt --language pl --output tables",
    "learn": "notes --name notes --target TARGET",
    "train": f"--target TARGET a.txt --output drafter --labels text --evaluations 1 {TINY}",
    "tables show": "TABLE",
    "tables verify": "TABLE",
    "tables push": "TABLE model",
    "tables pull": "model",
    "tables forget": "notes",
    "calibrate": "--target TARGET --budget 1",
    "bench": "--target TARGET --draft DRAFT a.txt --limit 1 --text --method copy",
}
"""In this order each finds what the ones before it made."""

TABLE = "tables/target/pl.dictionary.tok"
_PLACES = {"TARGET": str(DEMO / "target"), "DRAFT": str(DEMO / "draft"), "TABLE": TABLE}


def words(line: str) -> list[str]:
    """A command line as a list."""
    return [_PLACES.get(word, word) for word in line.split()]


def prepared(folder: Path) -> Path:
    """The folder, with a text and documents to read, and a place to push to."""
    lines = "".join(sentence.replace("\n", " ") + "\n" for sentence in SENTENCES)
    (folder / "a.txt").write_text(lines)
    for name in ("notes", "model"):
        (folder / name).mkdir()
    (folder / "notes" / "a.md").write_text(lines.replace("\n", "\n\n"))
    return folder
