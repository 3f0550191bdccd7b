"""A local server that speaks as much of the Hub's protocol as snapshots and commits need."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 40


@dataclass
class Hub:
    """What a served Hub was asked. cut: paths of which only the first half arrives.

    sent: bytes of files.
    """

    cut: set[str] = field(default_factory=set)
    sent: int = 0
    tokens: set[str | None] = field(default_factory=set)
    read_only: bool = False


@contextmanager
def serve_hub(
    repositories: Mapping[str, MutableMapping[str, bytes]], hub: Hub | None = None
) -> Iterator[str]:
    """Serve repositories (name -> path -> content); yields the address for HF_ENDPOINT.

    What is committed is added to `repositories`, and what was asked to `hub`.
    """
    seen = hub or Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            found = self._repository()
            seen.tokens.add(self.headers["Authorization"])
            if found is None:
                self._refuse(404, "RepoNotFound")
            elif seen.read_only:
                self._refuse(403, "Forbidden")
            elif "/preupload/" in self.path:
                asked = [file["path"] for file in json.loads(data)["files"]]
                mode = {"uploadMode": "regular", "shouldIgnore": False}
                self._send(json.dumps({"files": [{"path": path, **mode} for path in asked]}))
            else:
                for line in map(json.loads, data.splitlines()):
                    if line["key"] == "file":
                        content = base64.b64decode(line["value"]["content"])
                        found[1][line["value"]["path"]] = content
                url = f"http://{self.headers['Host']}/{found[0]}/commit/{COMMIT}"
                self._send(json.dumps({"commitUrl": url, "commitOid": COMMIT, "success": True}))

        def _repository(self) -> tuple[str, MutableMapping[str, bytes]] | None:
            return next((one for one in repositories.items() if f"/{one[0]}" in self.path), None)

        def _answer(self, *, body: bool) -> None:
            seen.tokens.add(self.headers["Authorization"])
            data = self._content()
            if data is None:
                self._refuse(404, "RepoNotFound")
                return
            path = self._path()
            tag = f'"{len(data)}-{path.replace("/", "-")}"'
            status, headers = 200, {"X-Repo-Commit": COMMIT, "ETag": tag}
            if path and (part := self.headers["Range"]):
                begin, _, end = part.removeprefix("bytes=").partition("-")
                headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
                status, data = 206, data[int(begin) : int(end or len(data)) + 1]
            self._begin(status, len(data), headers)
            if body:
                seen.sent += len(data) if path else 0
                self.wfile.write(data[: len(data) // 2] if path in seen.cut else data)

        def _send(self, text: str) -> None:
            self._begin(200, len(text.encode()), {})
            self.wfile.write(text.encode())

        def _refuse(self, status: int, code: str) -> None:
            self._begin(status, 0, {"X-Error-Code": code})

        def _begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(length)}.items():
                self.send_header(name, value)
            self.end_headers()

        def _path(self) -> str:
            """The path of a file in its repository."""
            return self.path.partition("/resolve/")[2].partition("/")[2]

        def _content(self) -> bytes | None:
            found = self._repository()
            if found is None:
                return None
            name, files = found
            if "/tree/" in self.path:
                entries = [
                    {"type": "file", "path": file, "size": len(data), "oid": "0"}
                    for file, data in files.items()
                ]
                return json.dumps(entries).encode()
            if self.path.startswith("/api/models/"):
                return json.dumps({"id": name, "sha": COMMIT}).encode()
            return files.get(self._path())

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
