"""Prose is plain English: sentences that were once riddles do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from places import ROOT

FOLDERS = ("tokalign", "lab", "tests", "docs", "demo")

RIDDLES = (
    "Of equals the lowest",
    "By those who weigh what a row costs",
    "Beside the passes that go on",
    "the figures below are of before",
    "for whoever goes on with it",
    "Nobody is told to",
    "Of a waterfall",
    "what was to be written is not wrong",
    "came where these were expected",
    "Up to how many ids it does not matter",
    "each goes on from a pass of the target that has just ended",
    "Packs that lie about",
    "on their way to and fro",
    "what a target found likely",
    "One more draft, which is the trial",
    "A draft of so many passes had",
    "Passes that are paid back on top",
    "What a model says has that in it already",
    "The same of the files",
    "What tells how many children",
    "Given instead of the index",
    "the texts play the target's output",
    "Unnamed, the words of the prompt decide",
)
"""Beginnings of sentences that readers of this repository could not follow."""

BARE_OF = re.compile(r'"""Of [a-z]')
"""A docstring begins with a subject or a verb, never with "Of ..."."""


def test_no_riddle_comes_back() -> None:
    files = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        files += [path for end in ("py", "md") for path in (ROOT / folder).rglob(f"*.{end}")]
    wrong: dict[Path, list[str]] = {}
    for path in files:
        text = path.read_text("utf-8")
        joined = " ".join(line.strip().lstrip("# ") for line in text.splitlines())
        found = [riddle for riddle in RIDDLES if riddle in joined] + BARE_OF.findall(text)
        if found and path != Path(__file__):
            wrong[path] = found
    assert wrong == {}


def test_a_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tokalign").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
