"""Tables on their way between machines: to a repository, and from one into the table folder.

A repository is one on the Hub or a local folder, of a model or of tables alone. Tables are pushed
into its folder `tokalign`; they are pulled from there, from its top level and from any other folder
at the top level. Every byte is verified before a table is pushed, and before a pulled one gets to
where it can be found: what arrives is checked in memory, and written from there.
Recurrent drafters travel in the same way, each as a folder `drafter` or NAME.drafter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from tokalign.arguments import shown_path
from tokalign.atomic_file import write_file
from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.tables.bundle import MOST_BYTES, Bundle, decode_bundle
from tokalign.tables.drafter_files import CONFIG, find_weights, read_drafter_config
from tokalign.tables.finding import (
    DRAFTER_PATTERNS,
    KINDS,
    drafters_in,
    pulled_folder,
    table_files,
)
from tokalign.tables.opening import check_tables
from tokalign.tokenizer import hub
from tokalign.tokenizer.aliases import find_alias

FOLDER = "tokalign"
"""The folder of a repository that tables are pushed into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTable:
    """A table file, every byte of which was checked. path: relative to its repository."""

    path: str
    data: bytes
    bundle: Bundle

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]

    @property
    def contents(self) -> dict[str, bytes]:
        """Its one file by its path in the repository."""
        return {self.path: self.data}

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the target's tokenizer."""
        return self.bundle.fingerprints["target"]

    @property
    def is_private(self) -> bool:
        """Whether `tokalign learn` made it of somebody's own documents."""
        return any(file.get("private") for file in self.bundle.corpus.get("files", []))

    @property
    def language(self) -> str | None:
        """The language of a dictionary."""
        found = self.bundle.parameters.get("language")
        return None if found is None else str(found)

    def described(self) -> dict[str, Any]:
        """What a reader of a model's page has to know about it."""
        files: Sequence[Mapping[str, Any]] = self.bundle.corpus.get("files", [])
        return {
            "path": self.path,
            "kind": self.bundle.kind,
            "language": self.language,
            "bytes": len(self.data),
            "sha256": sha256(self.data).hexdigest(),
            "target": self.bundle.fingerprints["target"],
            "corpus": [str(file.get("name", "unnamed")) for file in files],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDrafter:
    """A drafter's folder, every byte of which was checked.

    path: relative to its repository. config: its configuration. contents: its files by their paths
    in the repository, the configuration last, because it names the weights.
    """

    path: str
    config: Mapping[str, Any]
    contents: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.rpartition("/")[2]

    @property
    def tokenizer(self) -> str:
        """The fingerprint of the target's tokenizer."""
        return str(self.config["target"].get("tokenizer"))

    def described(self) -> dict[str, Any]:
        """What a reader of a model's page has to know about it."""
        return {
            "path": self.path,
            "kind": "drafter",
            "language": None,
            "bytes": sum(map(len, self.contents.values())),
            "sha256": self.config["sha256"],
            "target": self.tokenizer,
            "corpus": [],
        }


Verified: TypeAlias = VerifiedTable | VerifiedDrafter


def push_tables(
    files: Sequence[Path], repository: str, *, folder: str = FOLDER
) -> tuple[str, list[Verified]]:
    """Verify tables and put them into a folder of a repository, on the Hub all of them or none.

    files: of tables, and folders of drafters. repository: a Hub repository, an alias, or an
        existing local folder. folder: at the top level of the repository, where tables are found
        beside a model.
    Returns: the repository, and the tables with their paths in it.
    Raises: BundleError or MissingAssetError for a table that cannot be used, UsageError for names
    that cannot be found again and for what `tokalign learn` made; as `hub.upload_files`.
    """
    if not folder or "/" in folder or folder.startswith("."):
        raise UsageError(f"--folder {folder!r} is not the name of a folder at the top level")
    tables: list[Verified] = [
        _verified_drafter(file, f"{folder}/{_drafter_name(file)}")
        if file.is_dir()
        else _verified(file, f"{folder}/{file.name}", shown_path(file))
        for file in files
    ]
    for file, table in zip(files, tables, strict=True):
        if isinstance(table, VerifiedTable) and table.is_private:
            raise UsageError(
                f"{shown_path(file)} was learned from private documents and is not pushed; build "
                "a table to share from a corpus, with: tokalign build"
            )
    names = [table.name for table in tables]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two files have the name {shown_path(min(twice))}; push them to different folders "
            "with --folder"
        )
    place = Path(os.path.expanduser(repository))
    if os.path.isdir(place):
        for table in tables:
            for path, data in table.contents.items():
                write_file(place / path, data, parents=True)
        return repository, tables
    name = find_alias(repository).mlx
    contents = {path: data for table in tables for path, data in table.contents.items()}
    hub.upload_files(name, contents, message=f"Add tables for tokalign: {', '.join(names)}")
    return name, tables


def pull_tables(name: str, *, note: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Fetch the tables of a model or of a repository of tables, and return where they are now.

    Drafters are among them.

    name: a Hub repository, an alias, or a local folder; of an alias' two repositories the first one
    with tables. `note` is told which repository it is. They lie in `pulled_folder()`, in a folder
    named after the repository; tables of the same names there are replaced.
    Raises: BundleError for a damaged table, and then none of them is kept; MissingAssetError if
    there are none or they cannot be reached.
    """
    place = Path(os.path.expanduser(name))
    if os.path.isdir(place):
        return _keep(list(_tables_in(place, str(place))), place.resolve().name)
    alias = find_alias(name)
    with TemporaryDirectory(prefix="tokalign-") as temporary:
        found = hub.download_files(
            alias.repositories,
            alias.revision,
            ("*.tok", *DRAFTER_PATTERNS),
            Path(temporary),
            remedy=f"tokalign pull {name}",
        )
        if found is None:
            raise _no_tables(" or ".join(alias.repositories))
        repository, downloaded = found
        note(f"{name} -> {repository}")
        return _keep(list(_tables_in(downloaded, repository)), repository.replace("/", "--"))


def model_card(tables: Sequence[Verified], repository: str) -> str:
    """A section for the README of a repository: what its tables are, and how to use them."""
    rows = "\n".join(
        f"| `{_cell(one['path'])}` | {one['kind']} | {_cell(one['language'] or '')} | "
        f"{one['bytes']:,} | {_cell(', '.join(one['corpus']))} | `{one['sha256']}` |"
        for one in (table.described() for table in tables)
    )
    targets = sorted({table.tokenizer for table in tables})
    fitting = ", ".join(f"`{target[:12]}…`" for target in targets)
    return f"""\
## Tables for tokalign

[tokalign](https://github.com/tokalign/tokalign) decodes faster with these tables. They change the
speed, never the output. They fit every model whose tokenizer has the fingerprint {fitting}; a
drafter fits only the model that it was trained on.

```sh
tokalign pull {repository}
tokalign decode --target MODEL --prompt "..."
```

| file | kind | language | bytes | counted texts | SHA-256 |
|---|---|---|---|---|---|
{rows}
"""


def _cell(text: str) -> str:
    """A text out of a table's header as a cell of a Markdown table, made harmless."""
    return shown_path(text).replace("|", "\\|").replace("<", "&lt;")


def _tables_in(folder: Path, repository: str) -> Iterator[Verified]:
    """All tables of a repository that was downloaded to `folder`, or that is this folder."""
    paths = [path for kind in KINDS for path in table_files(folder, kind)]
    drafters = list(drafters_in(folder))
    if not paths and not drafters:
        raise _no_tables(repository)
    for drafter in drafters:
        inner = drafter.relative_to(folder).parent.as_posix()
        name = _drafter_name(drafter)
        yield _verified_drafter(drafter, name if inner == "." else f"{inner}/{name}")
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        yield _verified(path, relative, shown_path(f"{repository}/{relative}"))


def _verified(file: Path, path: str, name: str) -> VerifiedTable:
    """Read a file and check every byte. path: in its repository. name: for errors."""
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            raise BundleError(f"{name} is no regular file of a table's size; give a .tok file")
        data = file.read_bytes()
    except OSError as error:
        raise MissingAssetError(
            f"{name}: {error.strerror or 'cannot be read'}; give an existing table"
        ) from error
    bundle = decode_bundle(data, name=name)
    check_tables(bundle, name)
    if not file.name.endswith(f".{bundle.kind}.tok"):
        raise UsageError(
            f"{name} is a table of kind {bundle.kind}, and by its name it would not be found; "
            f"rename it to NAME.{bundle.kind}.tok"
        )
    return VerifiedTable(path=path, data=data, bundle=bundle)


def _verified_drafter(folder: Path, path: str) -> VerifiedDrafter:
    """Read a drafter's folder and check every byte. path: what it is called in its repository."""
    config = read_drafter_config(folder)
    weights = find_weights(folder, config)
    files = (weights, folder / CONFIG)
    return VerifiedDrafter(
        path=path,
        config=config,
        contents={f"{path}/{file.name}": file.read_bytes() for file in files},
    )


def _drafter_name(folder: Path) -> str:
    """What a drafter's folder is called where drafters are found by their names."""
    name = folder.resolve().name
    return name if name == "drafter" or name.endswith(".drafter") else f"{name}.drafter"


def _keep(tables: Sequence[Verified], slug: str) -> list[Path]:
    """Write verified tables to where they are found; returns their paths.

    A repository may have folders of tables for several models, whose file names are equal.
    """
    kept = []
    for table in tables:
        inner = table.path.rpartition("/")[0]
        own = slug if inner in ("", FOLDER) else f"{slug}--{inner}"
        kept.append(pulled_folder() / own / table.name)
        for path, data in table.contents.items():
            write_file(kept[-1].parent / path.removeprefix(f"{inner}/"), data, parents=True)
    return kept


def _no_tables(repository: str) -> MissingAssetError:
    return MissingAssetError(
        f"{repository} has no tables (no .dictionary.tok or .alignment.tok file, and no folder "
        "of a .drafter); make them with: tokalign build"
    )
