"""The command line. Each subcommand has a module: it parses, makes one library call and prints.

A subcommand is imported only when it runs, so that `tokalign --help` loads almost nothing.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from io import StringIO
from typing import TextIO

import click

from tokalign import __version__
from tokalign.child_processes import safe_path
from tokalign.cli.config import defaults, read_config
from tokalign.cli.failures import explained, unwritten
from tokalign.cli.output import complain, finish, open_closed_streams, to_stderr, visible
from tokalign.errors import MissingAssetError, TokalignError, UsageError
from tokalign.installation import install_line

GROUPS = {
    "Generate text": {
        "check": "Say what to expect of dictionaries, of a pair of tokenizers, of a drafter.",
        "decode": "Generate text, faster, with exactly the target's own output.",
        "chat": "Talk with a model; every turn computes only what is new.",
        "serve": "Serve a model over HTTP, as OpenAI's clients and mlx_lm.server's users expect.",
    },
    "Make what drafts": {
        "build": "Build a dictionary of a language, and the alignment of a draft model.",
        "learn": "Make a private dictionary of your own documents.",
        "train": "Train a drafter for a target, or teach a draft model.",
        "tables": "Show, verify, pull, push and forget table files.",
        "models": "List models and what lies on this machine; fetch or delete it.",
    },
    "Measure": {
        "calibrate": "Measure what passes cost on this machine.",
        "bench": "Measure every way to draft against plain decoding.",
    },
}
_COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


def _command(name: str) -> click.Command:
    command = import_module(f"tokalign.cli.{name}").command
    assert isinstance(command, click.Command)
    return command


class _LazyGroup(click.Group):
    """A group that imports only the command that runs, in the place of the one without options."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in _COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, words = super().resolve_command(ctx, args)
        try:
            # An option may be called like a command: chat's --calibrate is not in [calibrate].
            config = {
                key: value
                for key, value in read_config().items()
                if key == name or key not in _COMMANDS or not isinstance(value, dict)
            }
            if name is not None and command is not None and config:
                every = partial(map, _command, _COMMANDS)
                ctx.default_map = {name: defaults(config, command, every)}
        except UsageError:  # which help and completion say how to correct
            if not (ctx.resilient_parsing or {"-h", "--help", "--help-all"}.intersection(words)):
                raise
        return name, command, words

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*commands.items()])


def _show_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if not value:
        return
    from importlib.metadata import PackageNotFoundError, version

    versions = {"tokalign": __version__}
    for name in ("mlx", "mlx-lm"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    versions["Python"] = ".".join(map(str, sys.version_info[:3]))
    click.echo(", ".join(f"{name} {number}" for name, number in versions.items()))
    context.exit()


@click.group(
    cls=_LazyGroup,
    commands={name: click.Command(name) for name in _COMMANDS},
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 100,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="Show the versions of tokalign, mlx and mlx-lm.",
    callback=_show_version,
)
def group() -> None:
    """Make language models on MLX faster; what they write stays the same."""


def main() -> None:
    """Run the command line; turn deliberate errors into one line and an exit code. Exit codes: 0
    ok, 1 runtime, 2 usage, 3 incompatible pair or table, 4 missing asset, 129 SIGHUP, 130 Ctrl-C,
    143 SIGTERM.
    """
    open_closed_streams()
    stdout, stderr = sys.stdout, sys.stderr  # click replaces them when a reader is gone
    with safe_path():
        status = _run(stdout)
    if (error := finish(stdout)) is not None and not status:
        status = complain(unwritten(error))
    finish(stderr)
    sys.exit(status)


def _run(stdout: TextIO) -> int:
    """Run a command and say what went wrong; returns the exit code."""
    try:
        status = group.main(standalone_mode=False)
    except click.ClickException as error:
        shown = StringIO()
        error.show(file=shown)
        to_stderr(visible(shown.getvalue().rstrip("\n")))
        return error.exit_code
    except ModuleNotFoundError as error:
        # Commands that run models import mlx before they look for any model.
        if (error.name or "").partition(".")[0] not in ("mlx", "mlx_lm"):
            raise
        return complain(
            MissingAssetError(
                "this command runs models with mlx, which is not installed; install it with: "
                + install_line(extra="mlx")
            )
        )
    except (KeyboardInterrupt, click.Abort):
        to_stderr("tokalign: interrupted")
        return 130
    except (TokalignError, OSError, MemoryError, RuntimeError) as error:
        return complain(explained(error))
    except SystemExit as ended:
        if sys.stdout is not stdout:  # what click does when the reader of its help is gone
            return complain(unwritten(BrokenPipeError()))
        status = ended.code  # of a shell that asked for completions, SIGTERM or SIGHUP
        if status in (143, 129):
            to_stderr("tokalign: terminated")
    return status if isinstance(status, int) else 0
