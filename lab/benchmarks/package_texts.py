"""Czech, English and Ukrainian text out of packages: one file of paragraphs per package.

    apt-get download gnome-user-docs libreoffice-help-cs libreoffice-help-en-us
    pip download --no-deps ua-gec
    python -m lab.benchmarks.package_texts PACKAGES OUTPUT

PACKAGES is the folder with those files. Debian 12's versions were used, with ua-gec 2.1.3. The
texts keep the licences of their packages (`LICENCES`); the shipped packs count them, and nothing
else of them is in this repository. A paragraph is kept if it is long enough and its letters are
those of the language, once.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import click

LICENCES = {
    "gnome-user-docs": "CC BY-SA 3.0",
    "libreoffice-help": "MPL 2.0",
    "ua-gec": "CC BY 4.0",
}
"""As the `copyright` of the Debian package or the metadata of the Python package say."""

SHORTEST = 40
"""Characters of the shortest paragraph."""

_OWN_LETTERS = {"uk": "іїєґ", "cs": "ěščřžůťďň", "en": "etaoin"}
_OTHER_SCRIPT = {"uk": re.compile("[ыэёъ]"), "cs": re.compile("[а-яłąęőș]")}
_OTHER_SCRIPT["en"] = re.compile("[а-яěščřžłąę]")
_LEAST_SHARE = {"uk": 0.03, "cs": 0.03, "en": 0.3}
"""The share of those letters in a text of the language is at least this."""

_BLOCKS = frozenset(("p", "li", "td", "dd", "dt", "h1", "h2", "h3", "h4", "title", "item"))


class Paragraphs(HTMLParser):
    """The text of every block of a page, HTML or Mallard."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """A block begins."""
        self._end(tag)

    def handle_endtag(self, tag: str) -> None:
        """A block ends."""
        self._end(tag)

    def handle_data(self, data: str) -> None:
        """Text of the block."""
        self._words.append(data)

    def _end(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.found.append("".join(self._words))
            self._words = []


def paragraphs_of(page: bytes) -> list[str]:
    """The paragraphs of an HTML or Mallard page."""
    parser = Paragraphs()
    parser.feed(page.decode("utf-8", "replace"))
    return parser.found


def debian_files(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of a Debian package whose names match."""
    wanted = re.compile(pattern)
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(tar.stdout)) as files:
        for member in files:
            if member.isfile() and wanted.search(member.name):
                content = files.extractfile(member)
                assert content is not None
                yield member.name, content.read()


def pages(package: Path, pattern: str) -> Iterator[str]:
    """Paragraphs of the pages of a Debian package."""
    for _, content in debian_files(package, pattern):
        yield from paragraphs_of(content)


def essays(wheel: Path) -> Iterator[str]:
    """The corrected texts of UA-GEC."""
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            if re.search(r"gec-only/(train|test)/target/[^/]*\.txt$", name):
                yield from files.read(name).decode().split("\n")


def texts_of(package: Path) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Language, name and paragraphs of what a package has."""
    name = package.name
    if name.startswith("gnome-user-docs"):
        for language, folder in (("cs", "cs"), ("en", "C"), ("uk", "uk")):
            yield language, "gnome-user-docs", pages(package, rf"/{folder}/.*\.page$")
    for language, code in (("cs", "cs"), ("en", "en-US")):
        if name.startswith(f"libreoffice-help-{code.lower()}"):
            yield language, "libreoffice-help", pages(package, rf"/help/{code}/text/.*\.html$")
    if name.startswith("ua_gec"):
        yield "uk", "ua-gec", essays(package)


def is_prose(text: str, language: str) -> bool:
    """Whether a paragraph is long enough and in this language, by its letters."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    own = sum(letter in _OWN_LETTERS[language] for letter in letters)
    return (
        len(text) >= SHORTEST
        and own >= _LEAST_SHARE[language] * len(letters)
        and len(letters) > 0.6 * len(text)
        and not _OTHER_SCRIPT[language].search(text.lower())
    )


@click.command()
@click.argument("packages", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
def main(packages: Path, output: Path) -> None:
    """Write OUTPUT/LANGUAGE/NAME.txt and print how much each has."""
    seen: set[str] = set()
    for package in sorted([*packages.glob("*.deb"), *packages.glob("*.whl")]):
        for language, name, paragraphs in texts_of(package):
            kept = []
            for paragraph in paragraphs:
                text = re.sub(r"\s+", " ", paragraph).strip()
                if text not in seen and is_prose(text, language):
                    seen.add(text)
                    kept.append(text)
            path = output / language / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(kept) + "\n", encoding="utf-8")
            size = path.stat().st_size / 1e6
            click.echo(
                f"| {language} | {name} | {LICENCES[name]} | {len(kept)} lines | {size:.2f} MB |"
            )


if __name__ == "__main__":
    main()
