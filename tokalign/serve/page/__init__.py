"""The chat page: one document, made of the files beside this one, that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

_SCRIPTS = ("conversations", "answers", "drawing", "page")


@cache
def read_page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers that let it run its own script and ask its own server only."""
    style = _text("page.css")
    script = '"use strict";\n' + "\n".join(_text(f"{name}.js") for name in _SCRIPTS)
    page = _text("page.html")
    page = page.replace("<style>", f"<style>{style}").replace("<script>", f"<script>{script}")
    data = page.encode()
    rules = (
        "default-src 'none'",
        f"script-src {_hash_of(script)}",
        f"style-src {_hash_of(style)}",
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


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _hash_of(content: str) -> str:
    """An inline script or style as a policy names it."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
