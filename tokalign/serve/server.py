"""The server's start and end: a socket, uvicorn in a thread of its own, and signals."""

from __future__ import annotations

import logging
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import uvicorn
from mlx_lm.utils import maybe_set_recommended_wired_limit

from tokalign.errors import UsageError
from tokalign.runtime.written_later import LATER
from tokalign.serve import Settings
from tokalign.serve.admission import is_loopback
from tokalign.serve.app import create_app
from tokalign.serve.connections import Connection
from tokalign.serve.metrics import Metrics
from tokalign.serve.models import Models
from tokalign.serve.scheduler import Scheduler

_LAST_WORDS = 5
"""Seconds that clients have to read their refusals when the server ends."""

_KEEP_ALIVE = 15
"""Seconds that a connection stays open without a request: longer than clients keep theirs (those of
OpenAI and Anthropic 5), so that none is closed while a request is on its way."""

_OTHER_FILES = 256
"""Files that may be open besides connections: tables, models, contexts."""

_OPEN_MAX = 10240
"""Files that macOS always allows, whatever its limit says."""

_LOG = logging.getLogger(__name__)


class Server:
    """A server that is listening and loading its models. Use it in a `with` block.

    host, port: where to listen; port 0 is any free one. note: as in `load_decoder`.
    Raises: UsageError if the address cannot be listened on.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        note: Callable[[str], None] = _LOG.info,
    ) -> None:
        _allow_files(settings.max_connections + _OTHER_FILES)
        self._socket = _listening(host, port)
        self._host, self._port = self._socket.getsockname()[:2]
        maybe_set_recommended_wired_limit()
        self.scheduler = Scheduler(Models(settings, note), settings, Metrics())
        limits = {"most": settings.max_connections, "seconds": settings.read_timeout}
        connection = type("_Connection", (Connection,), limits)
        config = uvicorn.Config(
            create_app(self.scheduler, is_local=self.is_local),
            http=connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_WORDS,
            timeout_keep_alive=_KEEP_ALIVE,
        )
        # Clients get the errors about their mistakes; the log does not.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._http = uvicorn.Server(config)
        self._loop = Thread(target=self._http.run, args=([self._socket],), name="http", daemon=True)
        self._loop.start()

    def __enter__(self) -> Server:
        """Wait until the models are loaded. Raises: as loading them does."""
        try:
            self.scheduler.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def is_local(self) -> bool:
        return is_loopback(self._host)

    def stop(self) -> None:
        """Refuse what is running and waiting, and wait for all threads."""
        self.scheduler.stop_and_join()
        self._http.should_exit = True
        self._loop.join()
        LATER.write_now()

    def wait(self) -> None:
        """Return when the scheduler's thread has failed."""
        self.scheduler.join()


def _allow_files(number: int) -> None:
    """Let this process have so many files open. macOS begins with 256 in all: further connections
    would then not be closed but wait, and tables could not be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    for allowed in (most, min(most, _OPEN_MAX)):
        if soft != resource.RLIM_INFINITY and soft < allowed:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
                return


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises: UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        every = address[0] == "::" and socket.has_dualstack_ipv6()  # as `localhost` may be IPv4
        return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=every)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # which names the place again
        raise UsageError(
            f"cannot listen on {host}, port {port} ({reason}); choose another --host or --port"
        ) from error


def run(start: Callable[[], Server], ready: Callable[[Server], None]) -> None:
    """Serve until SIGTERM, which ends it normally, or Ctrl-C. Raises: KeyboardInterrupt.

    start: makes the server. ready: called when requests are answered.
    """
    try:
        with start() as server:
            ready(server)
            server.wait()
            failure = server.scheduler.failure
    except SystemExit as ended:
        if ended.code != 128 + signal.SIGTERM:  # as `end_once` says it
            raise
        return
    if failure is not None:
        raise failure
