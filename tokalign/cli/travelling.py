"""Tables on their way between machines: to a repository, and from one into the table folder.

A repository is one on the Hub or a local folder, of a model or of tables alone. Tables are pushed
into its folder `tokalign`; they are pulled from there, from its top level and from any other folder
at the top level. Every byte is verified before a table is pushed, and before a pulled one gets to
where it can be found: what arrives is checked in memory, and written from there.
Recurrent drafters travel in the same way, each as a folder `drafter` or NAME.drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokalign.errors import MissingAssetError, UsageError, shown_path
from tokalign.names import hub
from tokalign.names.registry import find_alias, local_folder
from tokalign.storage import write_file
from tokalign.tables.bundle import decode_bundle, read_table_file
from tokalign.tables.finding import (
    DRAFTER_CONFIG,
    DRAFTER_PATTERNS,
    drafters_in,
    find_drafter_weights,
    pulled_folder,
    read_drafter_config,
    table_files,
)
from tokalign.tables.header import KINDS
from tokalign.tables.opening import verify_bundle

FOLDER = "tokalign"
"""The folder of a repository that tables are pushed into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A table file or the folder of a drafter, every byte of which was checked.

    path: relative to its repository. kind: of the table, or "drafter". sha256: of the table, or of
    the drafter's weights. target: the fingerprint of the target's tokenizer. corpus: names of the
    counted texts. private: whether `tokalign learn` made it of somebody's own documents.
    contents: its files by their paths in the repository, in the order of writing.
    """

    path: str
    kind: str
    language: str | None = None
    sha256: str
    target: str
    corpus: tuple[str, ...] = ()
    private: bool = False
    contents: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def described(self) -> dict[str, Any]:
        """What a reader of a model's page has to know about it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "language": self.language,
            "bytes": sum(map(len, self.contents.values())),
            "sha256": self.sha256,
            "target": self.target,
            "corpus": list(self.corpus),
        }


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
    tables = [
        _verify_drafter(file, f"{folder}/{_drafter_name(file)}")
        if file.is_dir()
        else _verify_table(file, f"{folder}/{file.name}", shown_path(file))
        for file in files
    ]
    for file, table in zip(files, tables, strict=True):
        if table.private:
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
    contents = {path: data for table in tables for path, data in table.contents.items()}
    if (place := local_folder(repository)) is not None:
        for path, data in contents.items():
            write_file(place / path, data, parents=True)
        return repository, tables
    name = find_alias(repository).mlx
    hub.upload_files(name, contents, message=f"Add tables for tokalign: {', '.join(names)}")
    return name, tables


def pull_tables(name: str, *, note: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Fetch the tables and drafters of a model or of a repository; returns where they are now.

    name: a Hub repository, an alias, or a local folder; of an alias' two repositories the first one
    with tables. `note` is told which repository it is. They lie in `pulled_folder()`, in a folder
    named after the repository; tables of the same names there are replaced.
    Raises: BundleError for a damaged table, and then none of them is kept; MissingAssetError if
    there are none or they cannot be reached.
    """
    if (place := local_folder(name)) is not None:
        return _keep(list(_tables_in(place, str(place))), place.resolve().name)
    alias = find_alias(name)
    with TemporaryDirectory(prefix="tokalign-") as temporary:
        found = hub.download_files(
            alias.repositories,
            alias.revision,
            ("*.tok", *DRAFTER_PATTERNS),
            Path(temporary),
            remedy=f"tokalign tables pull {name}",
        )
        if found is None:
            raise _no_tables(" or ".join(alias.repositories))
        repository, downloaded = found
        note(f"{name} -> {repository}")
        return _keep(list(_tables_in(downloaded, repository)), repository.replace("/", "--"))


def _tables_in(folder: Path, repository: str) -> Iterator[Verified]:
    """All tables of a repository that was downloaded to `folder`, or that is this folder."""
    paths = [path for kind in KINDS for path in table_files(folder, kind)]
    drafters = list(drafters_in(folder))
    if not paths and not drafters:
        raise _no_tables(repository)
    for drafter in drafters:
        inner = drafter.relative_to(folder).parent.as_posix()
        name = _drafter_name(drafter)
        yield _verify_drafter(drafter, name if inner == "." else f"{inner}/{name}")
    for path in paths:
        relative = path.relative_to(folder).as_posix()
        yield _verify_table(path, relative, shown_path(f"{repository}/{relative}"))


def _verify_table(file: Path, path: str, name: str) -> Verified:
    """Read a table file. path: in its repository. name: for errors.

    Raises: BundleError or MissingAssetError for a table that cannot be used; UsageError for a name
        by which it would not be found.
    """
    data = read_table_file(file, name)
    bundle = decode_bundle(data, name=name)
    verify_bundle(bundle)
    if not file.name.endswith(f".{bundle.kind}.tok"):
        raise UsageError(
            f"{name} is a table of kind {bundle.kind}, and by its name it would not be found; "
            f"rename it to NAME.{bundle.kind}.tok"
        )
    texts: Sequence[Mapping[str, Any]] = bundle.corpus.get("files", [])
    return Verified(
        path=path,
        kind=bundle.kind,
        language=bundle.parameters.get("language"),
        sha256=sha256(data).hexdigest(),
        target=bundle.fingerprints.get("target", ""),
        corpus=tuple(str(text.get("name", "unnamed")) for text in texts),
        private=any(text.get("private") for text in texts),
        contents={path: data},
    )


def _verify_drafter(folder: Path, path: str) -> Verified:
    """Read a drafter's folder. path: what it is called in its repository.

    Raises: as `read_drafter_config` and `find_drafter_weights`.
    """
    config = read_drafter_config(folder)
    # The configuration names the weights, so it is written last.
    files = find_drafter_weights(folder, config), folder / DRAFTER_CONFIG
    return Verified(
        path=path,
        kind="drafter",
        sha256=config["sha256"],
        target=str(config["target"].get("tokenizer")),
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
    kinds = ", ".join(f".{kind}.tok" for kind in KINDS)
    return MissingAssetError(
        f"{repository} has no tables (no {kinds} file, and no folder of a .drafter); "
        "make them with: tokalign build"
    )


def model_card(tables: Sequence[Verified], repository: str) -> str:
    """A section for the README of a repository: what its tables are, and how to use them."""
    rows = "\n".join(
        f"| `{_cell(one['path'])}` | {one['kind']} | {_cell(one['language'] or '')} | "
        f"{one['bytes']:,} | {_cell(', '.join(one['corpus']))} | `{one['sha256']}` |"
        for one in (table.described() for table in tables)
    )
    targets = sorted({table.target for table in tables} - {""})
    fitting = ", ".join(f"`{target[:12]}…`" for target in targets)
    which = f" whose tokenizer has the fingerprint {fitting}" if targets else ""
    return f"""\
## Tables for tokalign

[tokalign](https://github.com/tokalign/tokalign) decodes faster with these tables. They change the
speed, never the output. They fit every model{which}; a
drafter fits only the model that it was trained on, a pack is compiled for any tokenizer.

```sh
tokalign tables pull {repository}
tokalign decode --target MODEL --prompt "..."
```

| file | kind | language | bytes | counted texts | SHA-256 |
|---|---|---|---|---|---|
{rows}
"""


def _cell(text: str) -> str:
    """A text out of a table's header as a cell of a Markdown table, made harmless."""
    return shown_path(text).replace("|", "\\|").replace("<", "&lt;")
