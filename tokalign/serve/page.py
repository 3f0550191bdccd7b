"""The chat page and the headers by which it runs its own script and asks its own server only."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path


@cache
def read_page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers of its response."""
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
