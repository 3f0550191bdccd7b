"""`tokalign serve --install`: a login item that serves, of launchd (macOS) or systemd (Linux)."""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join

from tokalign.cli.config import config_folder
from tokalign.errors import UsageError
from tokalign.storage import write_file

LABEL = "org.tokalign.serve"

_CARRIED = (
    *("TOKALIGN_", "HF_", "LD_PRELOAD", "OPENBLAS_"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LANG", "LC_"),
)
"""How the variables begin that the item keeps: a login has none of what a shell has set."""

_UNIT = """\
[Unit]
Description=tokalign serve

[Service]
WorkingDirectory={folder}
Environment={variables}
ExecStart={command}
Restart=on-failure
SuccessExitStatus=143

[Install]
WantedBy=default.target
"""


def item_path() -> Path:
    """Where the login item of this user is, or would be."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    return config_folder() / "systemd" / "user" / "tokalign.service"


def install(words: Sequence[str]) -> tuple[Path, str]:
    """Write the login item that runs `tokalign serve` with these words, in this folder and with the
    environment's variables of `_CARRIED`, for this user alone. Returns: its path, and the command
    that starts it now; one that was there is stopped, as it has other words. Raises: UsageError,
    OutputError."""
    command, path = [sys.executable, "-P", "-m", "tokalign", "serve", *words], item_path()
    replaces = path.exists()
    variables = {name: v for name, v in os.environ.items() if name.startswith(_CARRIED)}
    if sys.platform == "darwin":
        log = str(Path.home() / "Library" / "Logs" / "tokalign.log")
        item = {
            "Label": LABEL,
            "ProgramArguments": command,
            "WorkingDirectory": os.getcwd(),
            "EnvironmentVariables": variables,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Interactive",  # any other is throttled (`man launchd.plist`)
            "StandardErrorPath": log,
        }
        content = plistlib.dumps(item)
        start = join(["launchctl", "bootstrap", f"gui/{os.getuid()}", str(path)])
    else:
        content = _UNIT.format(
            folder=os.getcwd().replace("%", "%%"),
            variables=_in_unit(f"{name}={value}" for name, value in variables.items()),
            command=_in_unit(command).replace("$", "$$"),
        ).encode()
        start = "systemctl --user daemon-reload && systemctl --user enable --now tokalign"
    write_file(path, content, parents=True)
    path.chmod(0o600)  # an --api-key may be in it
    if replaces:  # only now, as nothing is lost where it cannot be written
        _stop(path)
    return path, start


def _in_unit(words: Iterable[str]) -> str:
    """Words as systemd reads them: it takes a backslash for an escape in any quotes, and passes
    over a whole line with one that it does not know."""
    return join(words).replace("\\", r"\\").replace("%", "%%")


def uninstall() -> Path:
    """Stop the login item and delete it. Raises: UsageError if there is none."""
    path = item_path()
    if not path.exists():
        raise UsageError(f"there is no login item at {path}; tokalign serve NAME --install adds it")
    _stop(path)
    path.unlink()
    return path


def _stop(path: Path) -> None:
    """Stop the login item and let no login start it."""
    stop = ["systemctl", "--user", "disable", "--now", "tokalign"]
    if sys.platform == "darwin":
        stop = ["launchctl", "bootout", f"gui/{os.getuid()}", str(path)]
    with suppress(FileNotFoundError):  # nothing runs where there is no such program
        subprocess.run(stop, capture_output=True, check=False)
