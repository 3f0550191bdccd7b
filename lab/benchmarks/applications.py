"""What clients of OpenAI's and Anthropic's APIs get from a server, each by its own stream helper.

    python -m lab.benchmarks.applications http://127.0.0.1:8080 --folder FOLDER [--model NAME] \
        [--only WORD]

The server runs already. A check passes if the client gets what it asked for in the shape that it
promises to its own user: a parsed object, a tool call, parts that add up to a message. What the
text says does not matter. It prints a row for each check, and at the end how many passed.

Every client has an environment of its own in FOLDER, in which this program runs itself. What is not
there yet is installed, by uv and npm, in the newest version. It imports nothing of tokalign.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

import lab.benchmarks.clients.frameworks  # noqa: F401  # notes its checks
from lab.benchmarks.clients.checks import CLIENTS, Server
from lab.benchmarks.clients.makers import PACKAGES


def environment(name: str, folder: Path) -> Path:
    """The Python that a client runs in, with its packages. Node's are beside it."""
    packages = CLIENTS[name].requirements
    if not (node := folder / "node").exists():
        node.mkdir(parents=True)
        subprocess.run(["npm", "install", "--silent", *PACKAGES], cwd=node, check=True)
    wanted = [one for one in packages if not one.startswith("npm:")]
    own = folder / re.sub(r"\W+", "-", wanted[0] if wanted else "plain")
    python = own / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "--quiet", str(own), "--python", sys.executable], check=True)
        given = ["uv", "pip", "install", "--quiet", "--python", str(python), "pydantic", *wanted]
        subprocess.run(given, check=True)
    return python


def version_of(name: str, node: Path) -> str:
    """The version of a client's first package."""
    first = next(iter(CLIENTS[name].requirements), "")
    if first.startswith("npm:"):
        package = node / "node_modules" / first.removeprefix("npm:") / "package.json"
        return str(json.loads(package.read_text("utf-8"))["version"])
    return version(first.partition("[")[0]) if first else ""


def run_checks(name: str, server: Server) -> int:
    """Run a client's checks in this environment. Returns: how many failed."""
    warnings.filterwarnings("ignore")
    shown, failed = f"{name} {version_of(name, server.node)}".strip(), 0
    for asked, check in CLIENTS[name].checks.items():
        try:
            found, mark = str(check(server)), "passes"
        except Exception as error:
            found, mark, failed = f"{type(error).__name__}: {error}", "FAILS", failed + 1
        line = " ".join(found.split())[:160].replace("|", "\\|")
        print(f"| {shown} | {asked} | {mark} | {line} |", flush=True)
    return failed


def main() -> None:
    """Run every client in its environment, and say what came of it."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("url", help="the server's address, without a path")
    options.add_argument(
        "--folder", type=Path, required=True, help="where the clients are installed"
    )
    options.add_argument("--model", help="its name; else the first of those that it lists")
    options.add_argument("--only", default="", help="clients whose name has this word")
    options.add_argument("--here", help="run this client's checks in this environment")
    given = options.parse_args()
    url, model, folder = given.url.rstrip("/"), given.model, given.folder.resolve()
    if model is None:
        with urlopen(f"{url}/v1/models") as reply:
            model = json.load(reply)["data"][0]["id"]
    if given.here:
        sys.exit(run_checks(given.here, Server(url, model, folder / "node")))
    program: list[str] = [
        "-m",
        "lab.benchmarks.applications",
        url,
        "--folder",
        str(folder),
        "--model",
        model,
    ]
    failed = {
        name: subprocess.run([str(environment(name, folder)), *program, "--here", name]).returncode
        for name in CLIENTS
        if given.only.lower() in name.lower()
    }
    for name, count in failed.items():
        checks = len(CLIENTS[name].checks)
        print(f"{name}: {checks - count} of {checks}")


if __name__ == "__main__":
    main()
