"""Downloading and uploading tables and drafters: `tokalign tables push` and `tables pull`.

A repository is one on the Hub or a local folder, of a model or of tables alone. Tables are pushed
into its folder `tokalign`, and pulled from its top level and any folder there. Trained drafters are
shared as folders `drafter` or NAME.drafter. All is read, every byte of a table verified, before the
first file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tokalign.errors import MissingAssetError, UsageError, shown_path
from tokalign.names import hub
from tokalign.names.aliases import find_alias
from tokalign.names.registry import local_folder
from tokalign.storage import listed, write_file
from tokalign.tables.bundle import encode_bundle, read_bundle
from tokalign.tables.drafter_config import known_format, trained_for
from tokalign.tables.drafter_formats import DrafterFormat
from tokalign.tables.finding import (
    DRAFTER_CONFIG,
    DRAFTER_PATTERNS,
    drafter_weights,
    drafters_in,
    pulled_folder,
    read_drafter_json,
    table_files,
)
from tokalign.tables.header import KINDS
from tokalign.tables.opening import verify_bundle
from tokalign.tokenizer.files import holds_tokenizer

FOLDER = "tokalign"
"""The folder of a repository that tables are pushed into."""


class Verified(NamedTuple):
    """A table of which every byte was checked, or a drafter of a known format.

    folder: of its repository. name: of the file or of the drafter's folder. about: what a reader of
    a model's page has to know. files: contents by their paths in `folder`, in the order of writing.
    private: whether `tokalign learn` made it of somebody's own documents.
    """

    folder: str
    name: str
    about: dict[str, Any]
    files: Mapping[str, bytes]
    private: bool = False


def push_tables(
    files: Sequence[Path], repository: str, *, folder: str = FOLDER
) -> tuple[str, list[Verified]]:
    """Verify tables and drafters, and put all or none of them into a folder of a repository.

    Raises: BundleError or MissingAssetError for a table that cannot be used, UsageError for names
    that cannot be found again and for what `tokalign learn` made; as `hub.upload`.
    """
    if not folder or "/" in folder or folder.startswith("."):
        raise UsageError(f"--folder {folder!r} is not the name of a folder at the top level")
    tables = [_verified(file, folder, shown_path(file)) for file in files]
    for file, table in zip(files, tables, strict=True):
        if table.private:
            raise UsageError(
                f"{shown_path(file)} was learned from private documents and is not pushed; build "
                "a table to share from a corpus, with: tokalign build"
            )
    names = [table.name for table in tables]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(
            f"two files have the name {shown_path(min(repeated))}; push them to different folders "
            "with --folder"
        )
    if (place := local_folder(repository)) is not None:
        for table in tables:
            _write(place / folder, table)
        return repository, tables
    try:
        name = find_alias(repository).mlx
    except MissingAssetError as error:
        remedy = "make the folder first, or give a Hub repository (owner/name)"
        raise MissingAssetError(f"{shown_path(repository)} does not exist; {remedy}") from error
    contents = {f"{folder}/{path}": data for table in tables for path, data in table.files.items()}
    hub.upload(name, contents, message=f"Add tables for tokalign: {', '.join(names)}")
    return name, tables


def pull_tables(name: str, *, note: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Fetch the tables and drafters of a model or of a repository; returns where they are now.

    name: a Hub repository, an alias, of whose repositories the first one with tables is used, or a
    local folder. Raises: BundleError for a damaged table, and then none of them is kept;
    MissingAssetError if there are none or they cannot be reached.
    """
    if (place := local_folder(name)) is not None:
        return _keep(_tables_in(place, str(place)), place.resolve().name)
    alias = find_alias(name)
    with TemporaryDirectory(prefix="tokalign-") as temporary:
        repository, downloaded = hub.download_to(
            Path(temporary), alias.repositories, alias.revision, ("*.tok", *DRAFTER_PATTERNS)
        )
        note(f"{name} -> {repository}")
        return _keep(_tables_in(downloaded, repository), repository.replace("/", "--"))


def _tables_in(folder: Path, repository: str) -> list[Verified]:
    paths = [*drafters_in(folder), *(path for kind in KINDS for path in table_files(folder, kind))]
    if not paths:
        kinds = ", ".join(f".{kind}.tok" for kind in KINDS)
        raise MissingAssetError(
            f"{repository} has no tables (no {kinds} file, and no folder of a .drafter); "
            "make them with: tokalign build"
        )
    return [
        _verified(path, (place := path.relative_to(folder)).parent.name, f"{repository}/{place}")
        for path in paths
    ]


def _verified(source: Path, folder: str, shown: str) -> Verified:
    """Read a table file or a drafter's folder. folder: of its repository. shown: for errors."""
    return _drafter(source, folder, shown) if source.is_dir() else _table(source, folder, shown)


def _table(source: Path, folder: str, shown: str) -> Verified:
    bundle = read_bundle(source, name=shown)
    verify_bundle(bundle)
    data, texts = encode_bundle(bundle), bundle.corpus.get("files", [])
    if not source.name.endswith(f".{bundle.kind}.tok"):
        raise UsageError(
            f"{shown} is a table of kind {bundle.kind}, and by its name it would not be found; "
            f"rename it to NAME.{bundle.kind}.tok"
        )
    about = {
        "path": f"{folder}/{source.name}",
        "kind": bundle.kind,
        "language": bundle.parameters.get("language"),
        "sha256": sha256(data).hexdigest(),
        "target": bundle.fingerprints.get("target", ""),
        "bytes": len(data),
        "corpus": [str(text.get("name", "unnamed")) for text in texts],
    }
    private = any(text.get("private") for text in texts)
    return Verified(folder, source.name, about, {source.name: data}, private)


def _drafter(source: Path, folder: str, shown: str) -> Verified:
    name, kind = source.resolve().name, known_format(read_drafter_json(source), shown)
    if name != "drafter" and not name.endswith(".drafter"):
        name = f"{name}.drafter"
    if kind is DrafterFormat.MTP and holds_tokenizer(source):
        raise UsageError(f"{shown} is a model, whose MTP layer comes with it; share it as one")
    paths = [*drafter_weights(source), *listed(source, "*.json", "*.md")]
    paths.sort(key=lambda path: path.name == DRAFTER_CONFIG)  # without it a folder is no drafter
    files = {f"{name}/{path.relative_to(source).as_posix()}": path.read_bytes() for path in paths}
    about: dict[str, Any] = {
        "path": f"{folder}/{name}",
        "kind": "drafter",
        "language": None,
        "sha256": sha256(max(files.values(), key=len)).hexdigest(),
        "target": str(trained_for(source, kind).get("tokenizer")),
        "bytes": sum(map(len, files.values())),
        "corpus": [],
    }
    return Verified(folder, name, about, files)


def _write(folder: Path, table: Verified) -> None:
    """Write a table into a folder, or a drafter, of which no older weights are left."""
    for path, data in table.files.items():
        write_file(folder / path, data, parents=True)
    if table.about["kind"] == "drafter":
        for old in listed(folder / table.name, "*.safetensors", "*.safetensors.index.json"):
            if f"{table.name}/{old.name}" not in table.files:
                old.unlink()


def _keep(tables: Sequence[Verified], slug: str) -> list[Path]:
    """Write verified tables to where they are found, from one folder of a repository."""
    kept = []
    for table in tables:
        own = slug if table.folder in ("", FOLDER) else f"{slug}--{table.folder}"
        _write(pulled_folder() / own, table)
        kept.append(pulled_folder() / own / table.name)
    return kept


def model_card(tables: Sequence[Verified], repository: str) -> str:
    """A section for the README of a repository: what its tables are, and how to use them."""
    rows = "\n".join(
        f"| `{_cell(about['path'])}` | {about['kind']} | {_cell(about['language'] or '')} | "
        f"{about['bytes']:,} | {_cell(', '.join(about['corpus']))} | `{about['sha256']}` |"
        for about in (table.about for table in tables)
    )
    own = [table.about for table in tables if table.about["kind"] not in _FITTING]
    targets = ", ".join(f"`{target[:12]}…`" for target in sorted({one["target"] for one in own}))
    fit = [f"Tables fit models whose tokenizer has the fingerprint {targets}."] * bool(own)
    kinds = {table.about["kind"] for table in tables}
    fit += [said for kind, said in _FITTING.items() if kind in kinds]
    return f"""\
## Tables for tokalign

[tokalign](https://github.com/tokalign/tokalign) decodes faster with what is here. It changes the
speed; the text is the model's own. {" ".join(fit)}

```sh
tokalign tables pull {repository}
tokalign decode --target MODEL --prompt "..."
```

| file | kind | language | bytes | counted texts | SHA-256 |
|---|---|---|---|---|---|
{rows}
"""


_FITTING = {
    "drafter": "A drafter fits only the model that it was trained on.",
    "pack": "A pack is compiled for any tokenizer.",
}
"""What is said of the kinds that do not fit by the target's tokenizer."""


def _cell(text: str) -> str:
    return shown_path(text).replace("|", "\\|").replace("<", "&lt;")
