"""How tokalign is installed here, and the command line that adds packages to it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from tokalign.storage import parse_json


def install_line(package: str = "", *, extra: str = "", alone: bool = False) -> str:
    """The command that adds a package, or an extra of tokalign, to this installation.

    It differs for `uv tool`, pipx, and environments with and without pip. alone: leave out what the
    package depends on.
    """
    prefix = Path(sys.prefix)
    options = "--no-deps " * alone
    is_tool = (prefix / "uv-receipt.toml").is_file()
    if extra and is_tool:
        return f"uv tool install {quote(_requirement({extra, *_extras_of_tool(prefix)}))}"
    wanted = options + quote(package or _requirement({extra}))
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx runpip tokalign install {wanted}"
    if is_tool or find_spec("pip") is None:
        return f"uv pip install --python {quote(sys.executable)} {wanted}"
    is_active = os.environ.get("VIRTUAL_ENV") == sys.prefix
    return f"{'pip' if is_active else quote(sys.executable) + ' -m pip'} install {wanted}"


def _requirement(extras: set[str]) -> str:
    """tokalign with some extras, from where it was installed, if that is still there."""
    from importlib.metadata import PackageNotFoundError, distribution

    named = f"tokalign[{','.join(sorted(extras))}]"
    try:
        url = parse_json(distribution("tokalign").read_text("direct_url.json") or "{}").get("url")
    except (PackageNotFoundError, ValueError, AttributeError):
        url = None
    is_there = url and (not url.startswith("file://") or Path(url[len("file://") :]).exists())
    return f"{named} @ {url}" if is_there else named


def _extras_of_tool(prefix: Path) -> set[str]:
    """The extras that `uv tool install` was asked for; without them it would take them away."""
    import tomllib

    try:
        receipt = tomllib.loads((prefix / "uv-receipt.toml").read_text("utf-8"))
        wanted = receipt["tool"]["requirements"]
        return {name for one in wanted if one["name"] == "tokalign" for name in one["extras"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
