"""`tokalign cache-prompt`, and what `decode` makes of its files and of mlx-lm's."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner, Result
from mlx_lm import cache_prompt
from mlx_lm.generate import generate_step
from random_models import write_model

from tokalign.cli.cache_prompt import command
from tokalign.cli.decode import command as decode_command
from tokalign.errors import (
    BundleError,
    FingerprintError,
    IncompatibleError,
    TokalignError,
    UsageError,
)
from tokalign.runtime.chat import encode_rest
from tokalign.runtime.decoder import LanguageModel
from tokalign.runtime.mlx.prompt_cache import read_prompt_cache
from tokalign.runtime.mlx.session import ModelSession

BEGINNING, REST = "Zażółć gęślą", " jaźń, a potem"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '\\n<assistant>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    target = write_model(folder / "target", vocabulary_size=420)
    (target / "chat_template.jinja").write_text(TEMPLATE)
    file = target / "tokenizer.json"
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    decoder["use_regex"] = True
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder": decoder}))
    return {
        "target": str(target),
        "draft": str(write_model(folder / "draft", vocabulary_size=340, seed=1)),
    }


def cache(models: dict[str, str], file: Path, *arguments: str) -> dict[str, Any]:
    given = ["--target", models["target"], "--prompt-cache-file", str(file), "--json", "--quiet"]
    result = CliRunner().invoke(command, [*given, *arguments], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def decode(models: dict[str, str], *arguments: str) -> dict[str, Any]:
    given = ["--target", models["target"], "-m", "15", "--json", "--quiet"]
    result = CliRunner().invoke(decode_command, [*given, *arguments], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(error: type[TokalignError], result: Result) -> str:
    assert isinstance(result.exception, error), result.exception
    return str(result.exception)


@pytest.mark.parametrize("plain", [True, False])
def test_a_cached_prompt_is_continued(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """The text is that of the whole prompt, and only the rest of the prompt is computed."""
    file = tmp_path / "cached.safetensors"
    style = ["--ignore-chat-template"] if plain else []
    written = cache(models, file, "-p", BEGINNING, "--system-prompt", "Odpowiadaj.", *style)
    assert written == {
        "file": str(file),
        "prompt_tokens": written["prompt_tokens"],
        "bytes": file.stat().st_size,
    }
    sessions: list[ModelSession[Any]] = []
    begin = ModelSession.__init__
    monkeypatch.setattr(
        ModelSession,
        "__init__",
        lambda self, *given, **named: (sessions.append(self), begin(self, *given, **named))[1],
    )
    rest = ["-p", REST, "--prompt-cache-file", str(file), *style]
    found = decode(models, "--method", "plain", *rest)
    assert found["prompt_tokens"] > written["prompt_tokens"] > 10
    new = found["prompt_tokens"] - written["prompt_tokens"]
    assert sessions[-1].computed <= new + found["generation_tokens"]
    whole = "Odpowiadaj.\n" + BEGINNING + REST
    if not plain:
        whole = f"<system>Odpowiadaj.\n<user>{BEGINNING}{REST}\n<assistant>"
    model = LanguageModel[Any].from_folder(Path(models["target"]))
    ids = [
        *(read_prompt_cache(file, model).ids or ()),
        *encode_rest(model.tokenizer, REST if plain else f"{REST}\n<assistant>"),
    ]
    assert model.tokenizer.decode(ids) == whole
    expected = generate_step(mx.array(ids), model.model, max_tokens=15)
    assert found["token_ids"] == [token for token, _ in expected][: len(found["token_ids"])]
    drafted = decode(models, "--draft", models["draft"], *rest)
    assert drafted["token_ids"] == found["token_ids"]


def test_a_cached_system_message_needs_no_prompt(models: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "cached.safetensors"
    assert cache(models, file, "--system-prompt", "Odpowiadaj krótko.")["prompt_tokens"] > 5
    rest = ["--target", models["target"], "-p", REST, "--prompt-cache-file", str(file)]
    message = refused(UsageError, CliRunner().invoke(decode_command, rest))
    assert "ends after a system message" in message
    bare = ["--target", models["target"], "--prompt-cache-file", str(file)]
    assert "--system-prompt or both" in refused(UsageError, CliRunner().invoke(command, bare))


def test_files_and_output_are_interchangeable_with_mlx_lm(
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Either's file gives either's output: four combinations, one text."""
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    cache(models, ours, "-p", BEGINNING)
    asked = ["--model", models["target"], "--prompt", BEGINNING, "--prompt-cache-file", theirs]
    monkeypatch.setattr(sys, "argv", ["mlx_lm.cache_prompt", *map(str, asked)])
    cache_prompt.main()
    texts = []
    for file in (theirs, ours):
        given = ["--prompt-cache-file", str(file), "-p", REST]
        texts.append(decode(models, "--method", "plain", *given)["text"])
        texts.append(decode(models, "--draft", models["draft"], *given)["text"])
        asked = ["--prompt", REST, "--prompt-cache-file", file, "-m", "15", "--verbose", "F"]
        monkeypatch.setattr(sys, "argv", ["mlx_lm.generate", *map(str, asked)])
        capsys.readouterr()
        import_module("mlx_lm.generate").main()
        texts.append(capsys.readouterr().out.removesuffix("\n"))
    assert len(set(texts)) == 1, texts


def test_what_does_not_fit_is_refused(models: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "cached.safetensors"
    cache(models, file, "-p", BEGINNING)
    given = ["-p", REST, "--prompt-cache-file", str(file)]

    def tried(*arguments: str) -> Result:
        return CliRunner().invoke(decode_command, [*given, *arguments])

    other = str(write_model(tmp_path / "other", vocabulary_size=420, seed=3))
    assert "other weights" in refused(IncompatibleError, tried("--target", other))
    refused(FingerprintError, tried("--target", models["draft"]))
    message = refused(IncompatibleError, tried("--target", models["target"], "--dtype", "float16"))
    assert "--dtype" in message
    asked = ["--target", models["target"], "--system-prompt", "Odpowiadaj."]
    assert "exclude each other" in refused(UsageError, tried(*asked))
    file.write_bytes(file.read_bytes()[:-7])
    assert "cache-prompt" in refused(BundleError, tried("--target", models["target"]))


def test_a_quantized_cache_stays_quantized(models: dict[str, str], tmp_path: Path) -> None:
    """The heads of the tiny model are too small for it, so the error comes from the cache."""
    arguments = ["--target", models["target"], "-p", BEGINNING, "--kv-bits", "8"]
    arguments += [
        "--quantized-kv-start",
        "0",
        "--prompt-cache-file",
        str(tmp_path / "a.safetensors"),
    ]
    message = refused(TokalignError, CliRunner().invoke(command, arguments))
    assert "--kv-group-size" in message
