"""Fixtures of all tests: official vocabularies, shared data where present, nothing of the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from places import DEMO, shared_folder
from polish import SENTENCES

from tokalign.names import registry
from tokalign.names.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer

# A machine shared with others has no clock; and whoever changes nothing sees no other examples.
settings.register_profile("shared", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("shared")

# Two threads of a BLAS for each of two workers would wait for each other; the models are tiny.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# On a CPU mlx compiles with the system's C++ compiler, a second for each of a hundred functions.
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

# Test files are compiled, with their assertions rewritten, once and not once for each worker; the
# commands that tests start do not compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def no_tables_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tables that a developer has built change no test, and no test changes them.

    Nor is a pack compiled because of the developer's language, or that of a prompt, and lines are
    as long as elsewhere: pytest-xdist sets $COLUMNS.
    """
    os.environ.pop("COLUMNS", None)
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("user-data"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("user-config"))
    os.environ["LC_ALL"], os.environ["TOKALIGN_PACKS"] = "C", "named"


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Curves and passed checks of a developer change no test, and no test changes them."""
    os.environ["TOKALIGN_CACHE"] = str(tmp_path_factory.mktemp("user-cache"))


@pytest.fixture(scope="session", autouse=True)
def official_vocabularies_are_read_once() -> Iterator[None]:
    """Every command that is tested in this process gets the same object for one of them.

    What a tokenizer computes when it is first asked, such as its splitter, is then shared as well.
    """
    read, known = registry.read_tokenizer, dict[str, Tokenizer[Any]]()

    def read_tokenizer(path: Path, *more: Any, **options: Any) -> Tokenizer[Any]:
        if "site-packages" not in Path(path).parts:
            return read(path, *more, **options)
        key = f"{path} {more}"
        if key not in known:
            known[key] = read(path, *more)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "read_tokenizer", read_tokenizer)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = shared_folder()
    if folder is None:
        pytest.skip("needs the shared corpora, tokenizers and models")
    return folder


@pytest.fixture(scope="session")
def bielik() -> Tokenizer[Any]:
    return resolve_tokenizer("bielik").tokenizer


@pytest.fixture(scope="session")
def llama() -> Tokenizer[Any]:
    return resolve_tokenizer("llama3.2").tokenizer


@pytest.fixture(scope="session")
def qwen() -> Tokenizer[Any]:
    return resolve_tokenizer("qwen2.5").tokenizer


@pytest.fixture(scope="session", params=["bielik", "llama", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer[Any]:
    """Each official tokenizer in turn."""
    found: Tokenizer[Any] = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of a line for each of `SENTENCES`, twenty times."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [sentence.replace("\n", " ") + "\n" for sentence in SENTENCES]
    path.write_text("".join(lines * 20), "utf-8")
    return path


@pytest.fixture(scope="session")
def demo_pair() -> tuple[Any, Any]:
    """Target and draft model of the demo, in float32; nobody changes them."""
    from tokalign.runtime.decoder import LanguageModel

    target, draft = DEMO / "target", DEMO / "draft"
    return tuple(LanguageModel.from_folder(one, dtype="float32") for one in (target, draft))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of a tiny target and of a draft model of another tokenizer; nobody changes them."""
    from random_models import write_model

    folder = tmp_path_factory.mktemp("models")
    return {
        "target": str(write_model(folder / "target", vocabulary_size=420)),
        "draft": str(write_model(folder / "draft", vocabulary_size=340, seed=1)),
    }


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server whose model answers with the user's message, and whose template calls tools."""
    from served import echo_folder, serving

    from tokalign.serve import Settings

    folder = echo_folder(tmp_path_factory.mktemp("models") / "echo")
    with serving(Settings(model=str(folder), trust_remote_code=True)) as running:
        yield running
