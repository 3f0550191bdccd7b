"""Every record, and every table in it, names programs that start, or is history."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "lab").rglob("*.md"))
LOST = "last in the repository at commit"
"""A paragraph that says so may name what is no longer here."""
STARTS = r"python (?:-m lab|\S+\.py)|pytest [a-z/_]+\.py|tokalign [a-z-]+ -|make [a-z]"


def is_history(text: str) -> bool:
    """Whether the title of a record, or of a part of one, says so."""
    return text.partition("\n")[0].endswith("(history)")


def parts_of(record: str) -> list[str]:
    """What stands under each of its titles, but for those that say that it is history."""
    parts = re.split(r"^(?=#+ )", record, flags=re.MULTILINE)
    return [part for part in parts if not is_history(part)]


def paragraphs(record: str) -> Iterator[str]:
    """The paragraphs of a record, without parts that are history."""
    for part in parts_of(record):
        yield from re.split(r"\n\s*\n", part)


def commands(paragraph: str) -> Iterator[list[str]]:
    """The words of every command of a paragraph, which stands in quotes, a block or indented."""
    quoted = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", paragraph)]
    indented = re.sub(r"\\\n|\n {8,}", " ", paragraph).splitlines()
    for line in [*quoted, *indented]:
        start = re.match(rf"\s*(?:[A-Z_]+=\S+ )*({STARTS})", line)
        if start:
            yield shlex.split(re.sub(r"[\[\]…]", " ", line[start.start(1) :]))


@cache
def help_of(module: str, *words: str) -> str:
    """What a program prints when asked for help; without its extra, its text."""
    try:
        found = vars(import_module(f"{module}.__main__" if module == "lab" else module))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return (ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")
    names = ("group", "benchmark", "command", "main", "record")
    program = next(found[name] for name in names if name in found)
    printed, asked = StringIO(), sys.argv
    sys.argv = [module, *words, "--help-all" if module == "tokalign.cli" else "--help"]
    try:
        with redirect_stdout(printed), pytest.raises(SystemExit) as stop:
            program()
    finally:
        sys.argv = asked
    assert not stop.value.code, f"{module} {words} does not start"
    return printed.getvalue()


def faults(words: list[str]) -> list[str]:
    """Why a command does not start."""
    program, *rest = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        return [] if f"\n{rest[0]}:" in makefile else [f"no target {rest[0]}"]
    if program == "tokalign":
        return _wrong_words("tokalign.cli", rest)
    if program == "python" and rest[0] == "-m":
        path = ROOT / rest[1].replace(".", "/")
        here = path.is_dir() or path.with_suffix(".py").is_file()
        return _wrong_words(rest[1], rest[2:]) if here else [f"no module {rest[1]}"]
    files = rest if program == "pytest" else rest[:1]
    return [f"no file {name}" for name in files if not (ROOT / name).is_file()]


def _wrong_words(module: str, rest: list[str]) -> list[str]:
    """The options that a program has not, and a subcommand where it takes no words."""
    first = "".join(rest[:1])
    printed = help_of(module, *([first] if re.fullmatch("[a-z][a-z-]*", first) else []))
    takes_none = re.match(rf"Usage: .*(?<! {re.escape(first)}) \[OPTIONS\]\n", printed)
    wrong = [first] if takes_none and first and not first.startswith("-") else []
    options = [word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)]
    wrong += [name for name in options if not re.search(rf"(?<![\w-]){name}(?![\w-])", printed)]
    return [f"{module} has no {word}" for word in wrong]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.relative_to(ROOT).as_posix())
def test_a_record_names_programs_that_start_or_is_history(record: Path) -> None:
    text = record.read_text("utf-8")
    if is_history(text):
        return
    kept = [p for p in paragraphs(text) if LOST not in " ".join(p.split())]
    named = [words for paragraph in kept for words in commands(paragraph)]
    assert [fault for words in named for fault in faults(words)] == []
    assert named or record.parent.name != "results" or record.stem == "README", "no program"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.relative_to(ROOT).as_posix())
def test_a_part_with_a_table_names_what_made_it(record: Path) -> None:
    text = record.read_text("utf-8")
    if record.parent.name != "results" or record.stem == "README" or is_history(text):
        return
    parts = [part for part in parts_of(text) if re.search(r"^\|( ?:?-)", part, re.MULTILINE)]
    known = [part for part in parts if LOST in " ".join(part.split()) or any(commands(part))]
    assert [part.partition("\n")[0] for part in parts if part not in known] == []


def test_every_record_is_listed() -> None:
    folder = ROOT / "lab" / "results"
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= listed
