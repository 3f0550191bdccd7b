"""Errors as OpenAI's clients expect them: an HTTP status and a JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokalign.errors import (
    ContextLengthError,
    MissingAssetError,
    TokalignError,
    UsageError,
)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_STATUS = {
    ContextLengthError: 400,
    MissingAssetError: 404,
    UsageError: 400,
}


class Refusal(TokalignError):  # noqa: N818  # named by what the client gets
    """A request that is not answered.

    status: of HTTP. code: a word for programs. headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status)
        kind = kind or ("invalid_request_error" if self.status < 500 else "server_error")
        return {
            "error": {"message": str(self), "type": kind, "param": None, "code": self.code},
        }


def refusal_of(error: BaseException, *, status: int = 500) -> Refusal:
    """What a client is told about an error.

    status: for an error that does not say by its type whose mistake it is.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextLengthError):
        return Refusal(
            400,
            f"prompt is too long: {error}",
            code="context_length_exceeded",
        )
    for kind, known in _STATUS.items():
        if isinstance(error, kind):
            return Refusal(known, str(error))
    text = " ".join(str(error).split()) or type(error).__name__
    if status < 500:
        return Refusal(status, text)
    return Refusal(status, f"the request failed ({type(error).__name__}: {text})")
