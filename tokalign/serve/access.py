"""Who may ask: API keys, web pages by their origin, and the names that this machine is asked by.

headers: of a request, as `http.server` reads them.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from tokalign.serve.refusal import Refusal


def authorized_key(headers: Mapping[str, str], keys: Collection[str]) -> str:
    """The request's API key, which is the scope of what is kept; empty if the server has no keys.

    Raises: Refusal unless it is one of the server's.
    """
    if not keys:
        return ""
    scheme, _, key = str(headers.get("Authorization", "")).strip().partition(" ")
    key = key.strip() if scheme.lower() == "bearer" else ""
    given = key.encode("latin-1")  # as which `http.server` reads every header
    # All are compared, so that the time says nothing about them.
    if not sum(hmac.compare_digest(given, known.encode()) for known in keys):
        raise Refusal(
            401,
            "the API key is missing or wrong: send the header Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return key


def require_origin(headers: Mapping[str, str], allowed: Collection[str]) -> None:
    """Raises: Refusal for a web page of an origin that is not allowed; "*" allows all."""
    origin = headers.get("Origin")
    if origin is not None and "*" not in allowed and origin not in allowed:
        raise Refusal(
            403,
            f"pages of {origin[:100]} may not use this server; start it with "
            "--allowed-origins to let them",
            code="origin_not_allowed",
        )


def require_local_host(headers: Mapping[str, str]) -> None:
    """Raises: Refusal if a loopback server is asked for by the name of another machine.

    A page could have its own name point here (DNS rebinding), and would then be of that origin.
    """
    host = str(headers.get("Host", "localhost"))
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if name != "localhost" and not is_loopback(name):
        raise Refusal(
            403,
            f"this server is for this machine only, not for {host[:100]!r}",
            code="host_not_allowed",
        )


def is_loopback(address: str) -> bool:
    """Whether this is an address at which only this machine is reached."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
