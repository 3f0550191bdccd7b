"""The command reference, made of the declared options.

    python docs/command_reference.py > docs/commands.md

A test compares the file with what this program prints.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

import click

from tokalign.cli import GROUPS, group
from tokalign.cli.command import HELP_ALL, JSON, QUIET
from tokalign.cli.conflicts import conditions, flag_of
from tokalign.cli.dialogue import COMMANDS

_OPENING = """\
# Commands

Made by `python docs/command_reference.py > docs/commands.md`.

Every command has `--help`, `--json`, which prints one object on stdout
([keys](metrics.md)), `chat` one for each answer, and `--quiet`, which silences notes and progress.
Data goes to stdout, everything else to stderr. Options marked \\* are rare: `--help-all` shows
them.

Where the line of an option says "Needs" or "Not with", a command that does otherwise is refused,
and the message says what to change. An output never takes the place of a file of another kind.

**Exit codes**: 0 ok, 1 runtime error (a full disk and an unreadable corpus too), 2 usage, 3
incompatible pair or table, 4 missing asset or offline, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (of
`serve` 0).

**Defaults of your own** are in `~/.config/tokalign.toml`, or in the file that `TOKALIGN_CONFIG`
names: `target = "bielik"` holds for every command, `max-tokens = 512` under `[decode]` for it. What
is typed goes before it. A `draft` that `train` is to teach stands under `[train]`,
the `language` of a text under `[build]` or `[check]`.

**Completion**: `eval "$(_TOKALIGN_COMPLETE=zsh_source tokalign)"`, or `bash_source`, `fish_source`.

**Environment**: `TOKALIGN_TABLES` is the folder into which `build` and `tables pull` put tables, in
place of the user data folder, and which is searched before it; `TOKALIGN_PACKS=named` compiles only
packs that `--language` names; `TOKALIGN_CACHE` is the folder of measured cost curves, of kept
contexts and of what `--remember` keeps; `TOKALIGN_API_KEY` is a key of `serve`. `HF_HOME`,
`HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_TOKEN` and `NO_COLOR` are honoured.
"""
_EVERYWHERE = (JSON, QUIET, *HELP_ALL)


def reference() -> str:
    """The reference of all commands, as Markdown. Options of several commands stand at the end."""
    commands = {title: list(_commands(names)) for title, names in GROUPS.items()}
    users: dict[click.Option, list[click.Context]] = {}
    for context in (one for of_group in commands.values() for one in of_group):
        for option in _options(context.command):
            users.setdefault(option, []).append(context)
    shared = {option: contexts for option, contexts in users.items() if len(contexts) > 1}
    parts = [_OPENING]
    for title, contexts in commands.items():
        parts.append(f"\n## {title}\n")
        for context in contexts:
            parts += _described(context, shared)
    parts.append("\n## Options of several commands\n\n")
    parts += (
        f"{_item(option, of)} *{', '.join(map(_name, of))}*\n" for option, of in shared.items()
    )
    return "".join(parts)


def command_names() -> list[str]:
    """Every command as it is typed, those of groups too."""
    return [_name(context) for names in GROUPS.values() for context in _commands(names)]


def _commands(names: Iterable[str]) -> Iterator[click.Context]:
    """The commands of these names, each in a context; of a group, every command in it."""
    top = click.Context(group, info_name="tokalign", show_default=True)
    for name in names:
        command = group.get_command(top, name)
        assert command is not None
        context = click.Context(command, parent=top, info_name=name)
        if not isinstance(command, click.Group):
            yield context
            continue
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield click.Context(found, parent=context, info_name=inner)


def _name(context: click.Context) -> str:
    return context.command_path.removeprefix("tokalign ")


def _options(command: click.Command) -> list[click.Option]:
    found = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in found if one not in _EVERYWHERE]


def _described(context: click.Context, shared: Collection[click.Option]) -> Iterator[str]:
    """A command: usage, help and its own options."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    about = inspect.cleandoc(command.help or "").split("\n\n")
    yield f"\n### {_name(context)}\n\n`{usage}`\n\n"
    yield "\n\n".join(" ".join(paragraph.split()) for paragraph in about) + "\n"
    if command.name == "chat":
        yield "\n| typed | what it does |\n|---|---|\n"
        yield from (
            f"| `/{name}{' ' * bool(takes)}{takes}` | {what} |\n"
            for name, (takes, what) in COMMANDS.items()
        )
    own = [one for one in _options(command) if one not in shared]
    if own:
        yield "\n"
        yield from (f"{_item(option, [context])}\n" for option in own)
    others = sum(one in shared for one in _options(command))
    if others:
        yield f"\nAnd {others} [options of several commands](#options-of-several-commands).\n"


def _item(option: click.Option, contexts: Sequence[click.Context]) -> str:
    """An option of some commands in a list."""
    flags = " ".join(dict.fromkeys([*option.opts, *option.secondary_opts]))
    takes = "" if option.is_flag else f" {option.make_metavar(contexts[0])}"
    extra = option.get_help_extra(contexts[0])
    default = extra.get("default", "required" if option.required else "")
    about = option.help or ""
    needs, excludes = zip(*(conditions(context, option) for context in contexts), strict=True)
    levels = (
        [one for some in level for one in some] for level in zip_longest(*needs, fillvalue=())
    )
    needed = [_listed(level) for level in levels if "--target" not in level]
    needing = [context for context, some in zip(contexts, needs, strict=True) if some]
    where = "" if needing == [*contexts] else f" in {', '.join(map(_name, needing))}"
    about += f" Needs {' and '.join(needed)}{where}." * bool(needed)
    excluded: dict[str, list[str]] = {}  # by the commands that exclude it, if others do not
    for text in dict.fromkeys(one for some in excludes for one in some):
        able = [c for c in contexts if text.split()[0] in map(flag_of, c.command.params)]
        refusing = [c for c, some in zip(contexts, excludes, strict=True) if text in some]
        named = "" if refusing == able else f" in {', '.join(map(_name, refusing))}"
        excluded.setdefault(named, []).append(text)
    for named, texts in excluded.items():
        about += f" Not with {_listed(texts)}{named}."
    rare, given = " \\*" * option.hidden, f" ({default})" * bool(default)
    return f"* `{flags}{takes}`{rare}{given}: {about}"


def _listed(texts: Iterable[str]) -> str:
    """Conditions as a list; several values of one option stand together."""
    values: dict[str, dict[str, None]] = {}
    for text in texts:
        flag, _, value = text.partition(" ")
        values.setdefault(flag, {}).update({value: None} if value else {})
    found = [f"`{flag}{' ' * bool(of)}{', '.join(of)}`" for flag, of in values.items()]
    return " or ".join(found)


if __name__ == "__main__":
    print(reference(), end="")
