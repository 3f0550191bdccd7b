"""Options that every command has."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tokalign.cli import group


def leaves(command: click.Command) -> dict[str, click.Command]:
    """A command, or those of a group, by their names."""
    if not isinstance(command, click.Group):
        return {str(command.name): command}
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return {name: leaf for one in inner if one for name, leaf in leaves(one).items()}


COMMANDS = leaves(group)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_quiet(name: str) -> None:
    command = COMMANDS[name]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet"} <= options


NAMES_OF_MODELS = {"--target", "--draft"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_path_and_no_name_of_a_model_may_be_empty(name: str) -> None:
    """A variable of the shell that is not set would stand for the current folder."""
    command = COMMANDS[name]
    empty = [""] * sum(isinstance(one, click.Argument) for one in command.params)
    for parameter in command.params:
        is_path = isinstance(parameter.type, click.Path)
        if is_path or NAMES_OF_MODELS & {*parameter.opts}:
            is_option = isinstance(parameter, click.Option)
            result = CliRunner().invoke(command, [parameter.opts[0], ""] if is_option else empty)
            assert (result.exit_code, result.stderr.count("it is empty")) == (2, 1), parameter.opts
