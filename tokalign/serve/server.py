"""Sockets, signals, start and end of the server."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import ThreadingHTTPServer
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import Any

from mlx_lm.utils import maybe_set_recommended_wired_limit

from tokalign.errors import UsageError
from tokalign.serve import Settings
from tokalign.serve.admission import is_loopback
from tokalign.serve.handler import Handler
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Models
from tokalign.serve.scheduler import Scheduler

_LAST_WORDS = 5.0
"""Seconds that clients have at the end to read the answer that there will be none."""

_LOG = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """A server that is listening and loading its models. Use it in a `with` block.

    host, port: where to listen; port 0 is any free one. note: told what was found and chosen.
    Raises: UsageError if the address cannot be listened on.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        note: Callable[[str], None] = _LOG.info,
    ) -> None:
        self._settings = settings
        self._clients: set[Thread] = set()
        self._loop = Thread(target=self.serve_forever, name="serve", daemon=True)
        try:
            self.address_family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__((str(address[0]), int(address[1])), Handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}, port {port} ({error.strerror}); choose another --host "
                "or --port"
            ) from error
        maybe_set_recommended_wired_limit()
        self.metrics = Metrics()
        self.scheduler = Scheduler(Models(settings, note), settings, self.metrics)
        self.RequestHandlerClass = partial(Handler, self.scheduler)

    def __enter__(self) -> Server:
        """Load the models and answer requests. Raises: as loading them does."""
        try:
            self.scheduler.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(str(self.server_address[0]))

    def stop(self) -> None:
        """End: refuse what is running and waiting, and wait for all threads."""
        if self._loop.is_alive():
            self.shutdown()
            self._loop.join()
        self.scheduler.stop_and_join()
        deadline = monotonic() + _LAST_WORDS
        for client in list(self._clients):
            client.join(max(0.0, deadline - monotonic()))
        self.server_close()

    def wait(self) -> None:
        """Return when the scheduler's thread ends, which it does only if it fails."""
        self.scheduler.join()

    # -- clients -----------------------------------------------------------------------------------

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a free place for one more client."""
        return len(self._clients) < self._settings.max_connections

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        thread = current_thread()
        self._clients.add(thread)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.discard(thread)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what no client can be told."""
        _LOG.warning("a request from %s failed", client_address, exc_info=True)


class _Terminated(Exception):  # noqa: N818  # not an error
    """SIGTERM has come."""


def run(server: Server, ready: Callable[[Server], None]) -> None:
    """Serve until SIGTERM, which ends it normally, or Ctrl-C. Raises: KeyboardInterrupt.

    ready: called when requests are answered.
    """
    with suppress(_Terminated), _sigterm_raises(), server:
        ready(server)
        server.wait()
    if server.scheduler.failure is not None:
        raise server.scheduler.failure


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def terminate(_signal: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
        raise _Terminated

    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
