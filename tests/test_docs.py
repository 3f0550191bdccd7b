"""Documentation: links lead somewhere, and there is no more of it than a person reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("", "corpora", "demo", "docs", "lab", "lab/results", "tables", "tests/hostile")
MOST_WORDS = 18_000
"""In docs/, all pages together."""


def pages() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).glob("*.md"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


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
    words = sum(len(page.read_text("utf-8").split()) for page in (ROOT / "docs").glob("**/*.md"))
    assert words <= MOST_WORDS
