"""Command lines, run in this process, and one short run of every command on the demo pair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from places import DEMO
from polish import SENTENCES

from tokalign.cli import main


class Ended(NamedTuple):
    """How a command ended: its exit code, and what it wrote to stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with --json; it must not have failed."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def is_refused(self, code: int, *words: str) -> str:
        """The last line of stderr, which alone says why it ended with this code, in these words."""
        assert self.code == code, self.err
        assert "Traceback" not in self.err
        assert "Exception ignored" not in self.err
        messages = [line for line in self.err.splitlines() if line.startswith("tokalign: ")]
        assert messages == self.err.splitlines()[-1:]
        assert [word for word in words if word not in messages[0]] == [], messages
        return messages[0]


def run(*words: object, typed: str | None = None) -> Ended:
    """What `tokalign` with these words does in a process of its own. typed: on stdin."""
    with CliRunner().isolation(input=typed) as (out, err, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tokalign", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(int(ended.value.code or 0), out.getvalue().decode(), err.getvalue().decode())


def start(*words: object, code: str = "", **how: Any) -> subprocess.Popen[Any]:
    """`tokalign` with these words, in a process of its own that Ctrl-C interrupts.

    A test run in the background of a shell ignores that signal, and its children would too.
    code: a program to run in its place. how: as of `Popen`.
    """
    program = ["-c", code] if code else ["-m", "tokalign"]
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **how,
    )


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
    "models list": "",
    "models pull": "TARGET",
    "models rm": "checked-tokenizers",
    "calibrate": "--target TARGET --budget 4",
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
