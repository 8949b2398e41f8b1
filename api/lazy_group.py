"""Groups of commands, each of which is imported when it is run, so that none pays for another's libraries."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple

import click


class Command(NamedTuple):
    """Where a command is, and what it is for."""

    target: str
    """`module:attribute`."""
    summary: str


def lazy_group(commands: Mapping[str, Command]) -> type[click.Group]:
    """A class of groups with these commands, in this order."""

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            """All names, the most used first."""
            del ctx
            return list(commands)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            """The command, imported now; None if there is none of this name."""
            del ctx
            if cmd_name not in commands:
                return None
            module, _, attribute = commands[cmd_name].target.partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            """The list in `--help`, without importing anything."""
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])

    return LazyGroup
