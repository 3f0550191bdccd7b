"""What every client may read: the chat page, and the OpenAPI document."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from tokalign import __version__
from tokalign.serve.body import Common


@cache
def read_page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers that let it run its own script and ask its own server only."""
    data = Path(__file__).with_name("page.html").read_bytes()
    rules = (
        "default-src 'none'",
        f"script-src {_hash_of(data, 'script')}",
        f"style-src {_hash_of(data, 'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Texts of models become text nodes, never markup.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(rules),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # kept by browsers, which send its tag every time
        "ETag": f'"{sha256(data).hexdigest()[:32]}"',
    }
    return data, headers


def _hash_of(page: bytes, element: str) -> str:
    """The only element of this name as a policy names it: by the hash of its content."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>".encode(), page, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content).digest()).decode()}'"


def openapi(forms: Mapping[str, type[Common]]) -> dict[str, Any]:
    """An OpenAPI document of the bodies that each path takes."""
    kinds = list(dict.fromkeys(forms.values()))
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_form = dict(zip(kinds, refs, strict=True))
    paths: dict[str, Any] = {}
    for path, form in forms.items():
        content = {"application/json": {"schema": by_form[form]}}
        operation = {
            "summary": (form.__doc__ or "").partition("\n")[0],
            "requestBody": {"required": True, "content": content},
            "responses": {"200": {"description": "The answer, or its events."}},
        }
        paths[path] = {"post": operation}
    info = {"title": "tokalign serve", "version": __version__}
    components = {"schemas": schemas}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}
