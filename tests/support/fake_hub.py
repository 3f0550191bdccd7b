"""A local server that speaks as much of the Hub's protocol as downloading a snapshot needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 40


@contextmanager
def serve_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Serve repositories (name -> file name -> content); yields the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            data = self._content()
            if data is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{len(data)}-{self.path.rsplit("/", 1)[-1]}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def _content(self) -> bytes | None:
            name = next((name for name in repositories if f"/{name}" in self.path), None)
            if name is None:
                return None
            files = repositories[name]
            if "/tree/" in self.path:
                entries = [
                    {"type": "file", "path": file, "size": len(data), "oid": "0"}
                    for file, data in files.items()
                ]
                return json.dumps(entries).encode()
            if self.path.startswith("/api/models/"):
                return json.dumps({"id": name, "sha": COMMIT}).encode()
            return files.get(self.path.rsplit("/", 1)[-1])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def write_snapshot(cache: Path, repository: str, files: Mapping[str, bytes]) -> Path:
    """Put files into a Hub cache, as an interrupted download leaves them; returns their folder."""
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        (snapshot / name).write_bytes(data)
    return snapshot
