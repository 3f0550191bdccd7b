"""Options that every command has."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tokalign.cli import group


@pytest.mark.parametrize("name", group.list_commands(click.Context(group)))
def test_every_command_has_json_and_quiet(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet"} <= options


NAMES_OF_MODELS = {"--target", "--draft"}


@pytest.mark.parametrize("name", group.list_commands(click.Context(group)))
def test_no_path_and_no_name_of_a_model_may_be_empty(name: str) -> None:
    """A variable of the shell that is not set would stand for the current folder."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    empty = [""] * sum(isinstance(one, click.Argument) for one in command.params)
    for parameter in command.params:
        is_path = isinstance(parameter.type, click.Path)
        if is_path or NAMES_OF_MODELS & {*parameter.opts}:
            is_option = isinstance(parameter, click.Option)
            result = CliRunner().invoke(command, [parameter.opts[0], ""] if is_option else empty)
            assert (result.exit_code, result.stderr.count("it is empty")) == (2, 1), parameter.opts
