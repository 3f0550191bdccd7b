"""Options that every command has."""

from __future__ import annotations

import click
import pytest

from tokalign.cli import group


@pytest.mark.parametrize("name", group.list_commands(click.Context(group)))
def test_every_command_has_json_and_quiet(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet"} <= options
