"""The layers of the architecture, kept: who imports whom, what stays unloaded, what is found."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from places import ROOT

from lab.baselines.decoder import BaselineDecoder
from tokalign.cli import _COMMANDS
from tokalign.runtime.decoder import Decoder

PACKAGE = Path(__file__).resolve().parent.parent / "tokalign"


@cache
def imports(path: Path) -> list[str]:
    """Every module a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.append(node.module or "")
    return found


def importers(module: str, folder: Path = PACKAGE) -> set[str]:
    """Files under `folder` that import `module` or something inside it."""
    return {
        str(path.relative_to(PACKAGE))
        for path in folder.rglob("*.py")
        if any(name == module or name.startswith(module + ".") for name in imports(path))
    }


LAYERS = (
    {"errors"},
    {"storage", "child_processes"},
    {"locks"},
    {"installation"},
    {"tokenizer"},
    {"names"},
    {"tables"},
    {"build", "runtime"},
    {"evaluate", "train"},
    {"conversation"},
    {"api"},
    {"cli", "serve", "vllm", "__init__", "__main__"},
)
"""From the lowest to the highest; a layer imports itself and the ones below it, no sibling."""


def layer_of(name: str) -> tuple[int, str]:
    """Rank and name of the layer of a path inside the package."""
    name = name.partition("/")[0].removesuffix(".py")
    return next(rank for rank, layer in enumerate(LAYERS) if name in layer), name


def test_every_import_points_down() -> None:
    wrong = set()
    for path in PACKAGE.rglob("*.py"):
        rank, layer = layer_of(str(path.relative_to(PACKAGE)))
        for name in imports(path):
            if name.startswith("tokalign."):
                other_rank, other = layer_of(name.split(".")[1])
                sibling = other_rank == rank and other != layer and rank < len(LAYERS) - 1
                if other_rank > rank or sibling:
                    wrong.add((str(path.relative_to(PACKAGE)), name))
    assert wrong == set()


def test_the_theory_of_bpe_imports_nothing_but_errors() -> None:
    bpe = PACKAGE / "tokenizer" / "bpe"
    named = {name for path in bpe.glob("*.py") for name in imports(path) if "tokalign" in name}
    assert {name for name in named if "tokenizer.bpe" not in name} <= {"tokalign.errors"}


def test_mlx_is_known_in_one_place() -> None:
    knows = importers("mlx") | importers("mlx_lm")
    assert knows
    # The API speaks mlx-lm's language to its callers, and the server is built on mlx-lm's.
    # Training runs models in ways of its own. A packaged model is read by mlx. One class of
    # tokenizers is mlx-lm's own.
    files = ("names/packaged_model.py", "tokenizer/reference.py")
    allowed = ("runtime/mlx/", "train/", "api/", "serve/", *files)
    assert all(path.startswith(allowed) for path in knows), knows


def test_what_runs_models_knows_nothing_of_what_drafts_or_decodes_with_them() -> None:
    below = ("mlx", "rounds", "options", "cost", "written_later")
    upward = {
        name
        for path in (PACKAGE / "runtime" / "mlx").glob("*.py")
        for name in imports(path)
        if name.startswith("tokalign.runtime.") and name.split(".")[2] not in below
    }
    assert upward == set()


def test_tokenizer_libraries_are_known_where_files_are_read() -> None:
    check = "tokenizer/self_check.py"
    assert importers("sentencepiece") == {"tokenizer/sentencepiece.py", check}
    readers = {f"tokenizer/{name}.py" for name in ("backend", "library", "reference", "tokenizer")}
    assert importers("tokenizers") == {*readers, check}


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a program has loaded when it ends, in a process of its own."""
    program += (
        "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    run = [sys.executable, "-c", program]
    return set(subprocess.run(run, capture_output=True, text=True, check=True).stderr.split())


HEAVY = {"mlx", "mlx_lm", "transformers", "huggingface_hub", "prompt_toolkit", "rich", "scipy"}
TABLES = {"numpy", "tokenizers", "sentencepiece"}

RUNS_MODELS = {
    f"{folder}/{name}.py"
    for folder, names in {
        "api": "text together objects patch call",
        "evaluate": "bench calibrate timed_passes",
        "runtime": "batch decoder generate request",
        "runtime/draft": "opening_knowledge trained",
        "serve": "answer app body completions connections decoding job json_body keeping "
        "messages models preparing request responses scheduler server streams waiting",
        "train": "begun blocks drafters eagles from_model kinds labelled_corpus losses "
        "run teaching",
    }.items()
    for name in names.split()
}
"""They load models, run them or ask for the chip, and so import mlx by way of runtime/mlx/."""


def module_name(path: Path) -> str:
    """The name under which a file of the package is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_importing_tokalign_loads_no_library() -> None:
    assert not loaded_by("import tokalign") & (HEAVY | TABLES)


def test_only_modules_that_run_models_load_mlx() -> None:
    """And none loads the other heavy libraries: every other module of the package is imported."""
    others = [
        module_name(path)
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in RUNS_MODELS
        and path.parent != PACKAGE / "runtime" / "mlx"
    ]
    assert len(others) > 100
    loaded = loaded_by("\n".join(f"import {name}" for name in others))
    assert "tokalign" in loaded
    assert not loaded & HEAVY


def test_every_module_said_to_run_models_does() -> None:
    names = {module_name(PACKAGE / path) for path in RUNS_MODELS} | {"tokalign.runtime.mlx"}
    for path in RUNS_MODELS:
        assert any(name.startswith((*names, "mlx")) for name in imports(PACKAGE / path)), path


def test_no_help_loads_models_or_tables() -> None:
    commands = ["", *sorted(_COMMANDS), "tables show", "tables pull"]
    program = (
        "import sys\n"
        "from tokalign.cli import main\n"
        f"for command in {commands}:\n"
        "    sys.argv[1:] = [*command.split(), '--help']\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert ended.code == 0, command"
    )
    assert not loaded_by(program) & (HEAVY | TABLES)


NEEDS = {"lab/benchmarks/peers": "torch", "lab/study": "jsonschema"}
"""What the modules of a folder need besides tokalign and its extra `mlx`."""


@pytest.mark.slow
def test_every_module_is_imported() -> None:
    files = [*(ROOT / "lab").rglob("*.py")]
    assert len(files) > 40
    for path in files:
        name = path.relative_to(ROOT)
        needed = [needs for folder, needs in NEEDS.items() if str(name).startswith(folder)]
        if "tests" not in name.parts and name.name != "__main__.py" and all(map(find_spec, needed)):
            import_module(".".join(name.with_suffix("").parts))


def test_the_decoder_of_the_baselines_replaces_what_there_is() -> None:
    own = {name for name in vars(BaselineDecoder) if not name.startswith("__")} - {"like"}
    assert own <= set(dir(Decoder))


def test_every_test_file_is_collected(pytestconfig: pytest.Config) -> None:
    """A plain pytest run enters every folder of tests, also tests/build/, a default to skip."""
    files = [*(ROOT / "tests").rglob("test_*.py")]
    folders = {part for path in files for part in path.relative_to(ROOT).parts[:-1]}
    skipped = pytestconfig.getini("norecursedirs")
    assert "build" in folders
    assert [one for one in folders if any(fnmatch(one, pattern) for pattern in skipped)] == []
