"""How tokalign is installed here, and the command line that adds packages to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from urllib.parse import unquote

from tokalign.errors import MissingAssetError, TokalignError
from tokalign.storage import parse_json


@contextmanager
def needing(
    what: str, *, extra: str, kind: type[TokalignError] = MissingAssetError
) -> Iterator[None]:
    """Import what an extra of tokalign has. what: who needs it, as in "Parquet is read by pyarrow;
    install it". Raises: an error of this kind, with the command, if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise kind(f"{what} with: {install_line(extra=extra)}") from error


def install_line(package: str = "", *, extra: str = "", alone: bool = False) -> str:
    """The command that adds a package, or an extra of tokalign, to this installation. alone: leave
    out what the package depends on."""
    wanted = "--no-deps " * alone + quote(package or _requirement(extra))
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return f"pipx runpip tokalign install {wanted}"
    if find_spec("pip") is None:
        return f"uv pip install --python {quote(sys.executable)} {wanted}"
    is_active = os.environ.get("VIRTUAL_ENV") == sys.prefix
    return f"{'pip' if is_active else quote(sys.executable) + ' -m pip'} install {wanted}"


def _requirement(extra: str) -> str:
    """tokalign with an extra, from where it was installed, if that is still there."""
    from importlib.metadata import PackageNotFoundError, distribution

    named = f"tokalign[{extra}]"
    try:
        origin = parse_json(distribution("tokalign").read_text("direct_url.json") or "{}")
        url, system = origin.get("url"), origin.get("vcs_info", {}).get("vcs")
    except (PackageNotFoundError, ValueError, AttributeError):
        url = system = None
    place = unquote(url[len("file://") :]) if url and url.startswith("file://") else "/"
    if not url or not Path(place).exists():
        return named
    return f"{named} @ {system}+{url}" if system else f"{named} @ {url}"
