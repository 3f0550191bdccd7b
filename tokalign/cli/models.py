"""`tokalign models`: which models have names, what lies on this machine, fetching and deleting."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tokalign.cli.command import MODEL_WORD, Command
from tokalign.cli.output import columns, note, paragraph, show
from tokalign.errors import MissingAssetError, UsageError, shown
from tokalign.names.aliases import aliases, check_name, find_alias
from tokalign.names.memory import COMFORT, machine_memory
from tokalign.storage import TABLES, cache_folder, listed, shipped

_NAMES = click.Argument(["names"], nargs=-1, required=True, metavar="NAME...", type=MODEL_WORD)


class _Group(click.Group):
    """A group that lists if no other command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else "--"
        lists = first.startswith("-") and first not in ctx.help_option_names
        return super().parse_args(ctx, ["list", *args] if lists else args)


@click.group("models", cls=_Group)
def command() -> None:
    """List models and what lies on this machine; fetch or delete it. Without a command: list."""


@command.command("list", cls=Command)
def list_models() -> None:
    """List the models that have names, the drafters that are known, and what is kept here.

    Sizes of models are computed from their parameters. A model fits if its weights leave a third of
    the memory to contexts and other programs.
    """
    memory = machine_memory()
    models, files = [*_models(memory)], [place.as_object() for place in _places()]
    result = {"memory": memory, "models": models, "drafters": [*_drafters()], "files": files}
    show(result, lambda: _in_words(result))


@command.command("pull", cls=Command, params=[_NAMES])
def pull(*, names: Sequence[str]) -> None:
    """Download models by their names; what is here already is not downloaded again."""
    from tokalign.names.registry import resolve_model

    memory = machine_memory()
    for name in map(check_name, names):
        size = 0 if Path(name).exists() else find_alias(name).bytes
        if size > memory:
            note(f"{name}: {_size(size)} of weights will not fit into {_size(memory)} of memory")
    folders = {name: str(resolve_model(name).folder) for name in names}
    show({"folders": folders}, lambda: "\n".join(folders.values()))


@command.command("rm", cls=Command, params=[_NAMES])
def remove(*, names: Sequence[str]) -> None:
    """Delete models from the Hub's cache, or other files that `tokalign models` lists, by name."""
    # All of them, before one is deleted; each once.
    wanted = dict.fromkeys(place for name in names for place in _named(name))
    deleted = [place.as_object() for place in wanted]
    for place in wanted:
        if place.path.is_dir():
            shutil.rmtree(place.path)
        else:
            place.path.unlink()
    show(
        {"deleted": deleted},
        lambda: "\n".join(f"{_size(place['bytes'])} freed: {place['path']}" for place in deleted),
    )


# -- models ----------------------------------------------------------------------------------------


def _models(memory: int) -> Iterator[dict[str, Any]]:
    """One object for each model that has an alias, its other aliases beside it."""
    from tokalign.names.registry import where_is

    names: dict[str, list[str]] = {}
    for name, alias in aliases().items():
        names.setdefault(alias.mlx, []).append(name)
    for repository, known in names.items():
        alias = find_alias(known[0])
        yield {
            "name": min(known, key=len),
            "also": sorted(known, key=len)[1:],
            "repository": repository,
            "parameters": alias.parameters,
            "bytes": round(alias.bytes),
            "licence": alias.licence,
            "here": where_is(alias),
            "fits": alias.bytes <= COMFORT * memory,
        }


def _drafters() -> Iterator[dict[str, Any]]:
    from tokalign.names.published_drafters import published_drafters

    for drafter in published_drafters():
        yield asdict(drafter) | {"here": drafter.downloaded() is not None}


# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """Files that are kept for later runs. instead: how they are deleted, if not by `models rm`."""

    name: str
    about: str
    path: Path
    instead: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of its files, each counted once; links of the Hub's cache count nothing."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.lstat().st_size for file in files if not file.is_dir())

    def as_object(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "bytes": self.bytes}


_CACHES = {
    "checked-tokenizers": "checks of tokenizers, made again",
    "curves": "what passes cost here, measured again",
    "remembered": "logits that --remember kept",
    "contexts": "what chats and servers have read, to go on from",
}


def _places() -> Iterator[Stored]:
    from tokalign.cli.entries import history_file
    from tokalign.tables.finding import learned_folder, pulled_folder, table_folder

    cache, own = cache_folder(), table_folder()
    compiled = [path for path in _folders(own) if re.fullmatch("[0-9a-f]{16}", path.name)]
    built = [path for path in _folders(own) if path not in (*compiled, pulled_folder())]
    by_hand = "delete what you do not need of it"
    places = [
        *_models_in_hub_cache(),
        *(
            Stored(path.name, "a model out of a package", path)
            for path in _folders(cache / "models")
        ),
        *(Stored(name, about, cache / name) for name, about in _CACHES.items()),
        Stored("chat-history", "what was typed into chats", history_file()),
        *(Stored(path.name, _about_compiled(path), path) for path in compiled),
        *(Stored(path.name, "tables that you built", path, by_hand) for path in built),
        Stored("pulled", "tables of tokalign tables pull", pulled_folder()),
        *(
            Stored(path.name, "learned from documents", path, f"tokalign tables forget {path.name}")
            for path in _folders(learned_folder())
        ),
        Stored("shipped", "tables that come with tokalign", shipped(TABLES), "they are part of it"),
    ]
    yield from (place for place in places if place.path.exists())


def _about_compiled(folder: Path) -> str:
    languages = [file.name.partition(".")[0] for file in listed(folder, "*.dictionary.tok")]
    return f"packs compiled for a tokenizer: {', '.join(languages)}"


def _folders(folder: Path) -> list[Path]:
    """Those with something in them: a pack that was not compiled to its end leaves an empty one."""
    return sorted({path.parent for path in folder.glob("*/*")})


def _models_in_hub_cache() -> Iterator[Stored]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, ValueError):  # the latter for a file in its place
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model":
            yield Stored(repository.repo_id, "the Hub's cache", repository.repo_path)


def _named(name: str) -> list[Stored]:
    """What a name stands for. Raises: MissingAssetError, UsageError."""
    alias = aliases().get(name.lower())
    meant = {name, *([] if alias is None else alias.repositories)}
    package = Path(alias.weights["file"]).stem.lower() if alias and alias.weights else ""
    places = [
        place
        for place in _places()
        if place.name in meant or (package and place.name.startswith(f"{package}-"))
    ]
    if not places:
        raise MissingAssetError(
            f"nothing of {shown(name)} is here; `tokalign models` lists what is"
        )
    for place in places:
        remedy = "delete the link and the folder that it leads to" * place.path.is_symlink()
        if instead := place.instead or remedy:
            raise UsageError(f"{place.path} is not deleted by this command: {instead}")
    return places


# -- words -----------------------------------------------------------------------------------------


def _in_words(result: Mapping[str, Any]) -> str:
    models, memory = result["models"], _size(result["memory"])
    here, fitting = (sum(bool(model[what]) for model in models) for what in ("here", "fits"))
    verdict = (
        f"{here} of {len(models)} models that have names are here, and {fitting} fit into the "
        f"{memory} of memory of this machine. Folders in MLX's layout and repositories of "
        "the Hub work too. `tokalign models pull NAME` downloads a model, `models rm NAME` deletes "
        "one, and `--drafter auto` downloads the drafter of a target that has one."
    )
    named = (
        (
            ", ".join([model["name"], *model["also"]]),
            _size(model["bytes"]),
            "yes" if model["fits"] else "no",
            "here" if model["here"] else "",
            model["licence"],
        )
        for model in models
    )
    trained = (
        (it["repository"], it["kind"], it["size"] or "", "here" if it["here"] else "")
        for it in result["drafters"]
    )
    kept = ((_size(file["bytes"]), file["name"], file["about"]) for file in result["files"])
    parts = (
        paragraph(verdict),
        columns(("name", "size", "fits", "", "licence"), named),
        columns(("drafter", "kind", "size", ""), trained),
        columns(("size", "files", ""), kept),
    )
    return "\n\n".join(parts)


def _size(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
