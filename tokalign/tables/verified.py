"""Tables and drafters whose every byte was checked, with their content in memory.

What is verified in this way can be pushed or kept: `travelling.py`; `model_card.py` describes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeAlias

from tokalign.errors import BundleError, MissingAssetError, UsageError
from tokalign.tables.bundle import MOST_BYTES, Bundle, decode_bundle
from tokalign.tables.drafter_files import CONFIG, find_weights, read_drafter_config
from tokalign.tables.opening import check_tables


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


def verify_table_file(file: Path, path: str, name: str) -> VerifiedTable:
    """Read a table file. path: in its repository. name: for errors.

    Raises: BundleError or MissingAssetError for a table that cannot be used; UsageError for a name
        by which it would not be found.
    """
    try:
        found = file.stat()
        if not S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
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


def verify_drafter(folder: Path, path: str) -> VerifiedDrafter:
    """Read a drafter's folder. path: what it is called in its repository.

    Raises: as `read_drafter_config` and `find_weights`.
    """
    config = read_drafter_config(folder)
    weights = find_weights(folder, config)
    files = (weights, folder / CONFIG)
    return VerifiedDrafter(
        path=path,
        config=config,
        contents={f"{path}/{file.name}": file.read_bytes() for file in files},
    )


def drafter_name(folder: Path) -> str:
    """What a drafter's folder is called where drafters are found by their names."""
    name = folder.resolve().name
    return name if name == "drafter" or name.endswith(".drafter") else f"{name}.drafter"
