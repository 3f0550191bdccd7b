"""Documentation: links lead somewhere, commands run, and it is no more than a person reads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import python_reference
from code_blocks import blocks

import tokalign
from tokalign.cli import group

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("corpora", "demo", "docs", "lab", "prompts", "tables", "tests")
MOST_WORDS = 18_000
"""In the README and docs/, all pages together that people wrote."""
GENERATED = {"commands.md", "machines.md", "python-reference.md"}
"""Pages in which one looks up a name."""


def pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.md"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ["docs/coloured_answer.py", "packaging/formula.py"])
def test_a_program_without_its_arguments_says_what_they_are(name: str) -> None:
    ended = subprocess.run([sys.executable, ROOT / name], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"python {name} " in ended.stderr


def test_links_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            other = (page.parent / path).resolve() if path else page
            if not other.exists() or (anchor and anchor not in anchors(other)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_the_pages_are_short_enough_to_read() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    read = [page.read_text("utf-8") for page in pages if page.name not in GENERATED]
    assert sum(len(text.split()) for text in read) <= MOST_WORDS


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every `tokalign` command in a page's shell blocks."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|;&]", line):
                words = part.split()
                if words[:1] == ["tokalign"]:
                    yield words[1:]


def test_commands_in_the_pages_exist() -> None:
    unknown = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for words in command_lines(page):
            command: click.Command | None = group
            while isinstance(command, click.Group) and words:
                command = command.get_command(click.Context(command), words.pop(0))
            known = {name for p in command.params for name in p.opts} if command else set()
            options = [word.split("=")[0] for word in words if re.match("--?[a-z]", word)]
            unknown += [f"{page.name}: {o}" for o in options if o not in known]
            unknown += [] if command else [f"{page.name}: {words}"]
    assert not unknown


def test_lines_of_shell_have_no_comment() -> None:
    """Typed or pasted into zsh, the shell of a Mac, the words of a comment are arguments."""
    lines = [line for page in pages() for block in blocks(page, "sh") for line in block.split("\n")]
    assert not [line for line in lines if re.search(r"(^|\s)#", line)]


def test_names_in_the_pages_python_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if page.name in GENERATED:
            continue
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tokalign":
                    assert hasattr(tokalign, node.attr), f"{page.name}: {node.attr}"


def test_the_python_reference_is_current() -> None:
    """Else: python docs/python_reference.py > docs/python-reference.md"""
    written = (ROOT / "docs" / "python-reference.md").read_text("utf-8")
    assert written == python_reference.reference()
