"""Names are resolved in order: local path, Hub cache, installed distribution, Hub; each says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tokalign.errors import MissingAssetError, UsageError
from tokalign.tokenizer.registry import aliases, resolve_model, resolve_tokenizer

TINY = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty Hub cache and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_OFFLINE", True)


def test_every_alias_is_complete() -> None:
    assert {
        "bielik",
        "bielik-pl",
        "bielik-1.5b",
        "bielik-4.5b",
        "llama3.2",
        "qwen2.5",
        "mistral",
    } <= (set(aliases()))
    for alias in aliases().values():
        assert alias.repository.count("/") == alias.mlx.count("/") == 1
        assert alias.revision
        assert alias.licence


def test_an_installed_vocabulary_is_found_offline(offline: None) -> None:
    found = resolve_tokenizer("bielik")
    assert "mistral-common" in found.description
    assert "Apache-2.0" in found.description
    assert found.slug == "bielik"
    assert len(found.tokenizer.vocabulary) == 32128


def test_a_local_path_comes_first(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TINY))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        found = resolve_tokenizer(str(path))
        assert found.tokenizer.encode("ab") == [2]
        assert found.slug == tmp_path.name.lower()


def test_offline_and_nowhere_names_three_ways(offline: None) -> None:
    with pytest.raises(MissingAssetError) as caught:
        resolve_tokenizer("bielik-1.5b")
    assert caught.value.exit_code == 4
    for way in ("Hub cache", "tokenizer.json", "local path"):
        assert way in str(caught.value)
    with pytest.raises(MissingAssetError, match="hf download"):
        resolve_model("bielik")


def test_an_unknown_alias_is_a_usage_error_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean bielik"):
        resolve_tokenizer("bielk")
    assert UsageError("").exit_code == 2


def test_a_path_that_does_not_exist_is_a_missing_asset() -> None:
    with pytest.raises(MissingAssetError, match="does not exist"):
        resolve_tokenizer("./nowhere/model")
    with pytest.raises(MissingAssetError, match="holds no config"):
        resolve_model(str(Path(__file__).parent))


@pytest.fixture
def hub() -> Iterator[str]:
    """A local server that speaks as much of the Hub's protocol as downloading a file needs."""
    files = {"tokenizer.json": json.dumps(TINY).encode(), "tokenizer_config.json": b"{}"}
    commit = "0" * 40

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            if "/tree/" in self.path:
                data = json.dumps(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": "0"}
                        for name, content in files.items()
                    ]
                ).encode()
            elif self.path.startswith("/api/models/someone/tiny"):
                data = json.dumps({"id": "someone/tiny", "sha": commit}).encode()
            else:
                name = self.path.rsplit("/", 1)[-1]
                if "someone/tiny" not in self.path or name not in files:
                    self.send_error(404)
                    return
                data = files[name]
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{len(data)}-{self.path.rsplit("/", 1)[-1]}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_hub_repository_is_downloaded_once_and_then_cached(hub: str, tmp_path: Path) -> None:
    program = (
        "from tokalign.tokenizer.registry import resolve_tokenizer as r; "
        "print(r('someone/tiny').description)"
    )

    def resolve(**settings: str) -> str:
        # A process of its own: the Hub's library reads its settings when it is imported.
        environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": hub} | settings
        run = [sys.executable, "-c", program]
        return subprocess.run(
            run, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "someone/tiny on the Hub" in resolve()
    assert "someone/tiny in the Hub cache" in resolve(HF_HUB_OFFLINE="1")
