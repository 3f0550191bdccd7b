"""Refusals, and who may send requests.

A client is known by its API key, a web page by its origin, and a loopback server by the names of
this machine. Starlette's `TrustedHostMiddleware` knows neither networks nor keys, and its answer
names no remedy.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import gethostname
from urllib.parse import urlsplit

from tokalign.errors import ContextLengthError, MissingAssetError, TokalignError, UsageError
from tokalign.serve import Settings

_LOG = logging.getLogger(__name__)
_CODES = {"previous_response_id": "previous_response_not_found"}
"""OpenAI's codes for fields that are not served. After this one, clients send the whole input."""


class Refusal(TokalignError):  # noqa: N818  # named by what the client gets
    """A request that is not answered. status: of HTTP. code: a word for programs. param: the path
    of the field that is wrong, where one is known."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}
        self.param: str | None = None


def unserved(name: str, remedy: str) -> Refusal:
    """A field of another API that asks for another answer than is given."""
    code = _CODES.get(name, "unsupported_parameter")
    return Refusal(400, f"{name} is not served: {remedy}", code=code)


def refusal_of(error: Exception) -> Refusal:
    """What a client is told about an error; a fault of ours is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextLengthError):
        # Claude Code reads both numbers from Anthropic's form of this sentence.
        counts = f"{error.prompt_tokens} tokens > {error.limit - 1} maximum"
        told = f"prompt is too long: {counts}; {error.remedy}"
        return Refusal(400, told, code="context_length_exceeded")
    if isinstance(error, UsageError | MissingAssetError):
        return Refusal(400 if isinstance(error, UsageError) else 404, str(error))
    text = " ".join(str(error).split()) or type(error).__name__
    refusal = Refusal(500, f"the request failed ({type(error).__name__}: {text})")
    _LOG.error("%s", refusal, exc_info=error)
    return refusal


def authorized_key(headers: Mapping[str, str], keys: Collection[str]) -> str:
    """The request's API key, which is the scope of what is kept; empty if the server has no keys.

    Raises: Refusal unless it is one of the server's.
    """
    if not keys:
        return ""
    scheme, _, key = str(headers.get("Authorization", "")).strip().partition(" ")
    key = key.strip() if scheme.lower() == "bearer" else str(headers.get("x-api-key", "")).strip()
    given = key.encode("latin-1")  # as which Starlette reads every header
    # All are compared, so that the time says nothing about them.
    if not sum(hmac.compare_digest(given, known.encode()) for known in keys):
        raise Refusal(
            401,
            "the API key is missing or wrong: send the header Authorization: Bearer KEY, "
            "or x-api-key: KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return key


def require_allowed(headers: Mapping[str, str], settings: Settings, *, is_local: bool) -> None:
    """Raises: Refusal for a web page of an origin that is not allowed, or another machine's name.

    A page may use the server that it came from: its origin is then the request's host. A page whose
    name was made to point here (DNS rebinding) looks the same, but has no key. So without keys the
    host has to be an address or the name of this machine. A server that `is_local` (on loopback)
    takes only names and addresses of this machine.
    """
    host, origin = str(headers.get("Host", "localhost")), headers.get("Origin")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    machine = gethostname().lower().removesuffix(".local")
    is_machine = name in ("localhost", machine, f"{machine}.local")
    has_keys, allowed = bool(settings.api_keys), settings.allowed_origins
    is_named = name in settings.allowed_hosts or "*" in settings.allowed_hosts
    if is_local and not (has_keys or is_machine or is_named or is_loopback(name)):
        raise Refusal(
            403,
            f"this server is for this machine only, not for the host {host[:100]!r}; start it with "
            f"--allowed-hosts {name[:100] or 'NAME'} to let that name in, or with --api-key",
            code="host_not_allowed",
        )
    if origin is None or "*" in allowed or origin in allowed:
        return
    own = [f"{scheme}://{host.lower()}" for scheme in ("http", "https") if name]
    is_safe = has_keys or is_machine or is_named or _address(name) is not None
    if not (is_safe and origin.lower() in own):
        raise Refusal(
            403,
            f"pages of {origin[:100]} may not use this server; start it with "
            "--allowed-origins to let them",
            code="origin_not_allowed",
        )


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """A name as an address; None if it is none."""
    try:
        return ip_address(name.partition("%")[0])
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Whether only this machine can be reached at an address."""
    found = _address(address)
    return found is not None and found.is_loopback
