"""A group of commands of which one is meant when none is named; options may stand before or after the name."""

from __future__ import annotations

from typing import ClassVar

import click


class DefaultGroup(click.Group):
    """`contrail settings --json` is `contrail settings show --json`; a subclass names the default."""

    default: ClassVar[str] = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The name of the command stands first from here on."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = _named_first(args, set(self.commands), self.default)
        return super().parse_args(ctx, args)


def _named_first(args: list[str], names: set[str], default: str) -> list[str]:
    """A name counts unless it is the value of the option before it."""
    for place, word in enumerate(args):
        before = args[place - 1] if place else ""
        valued = before.startswith("-") and before != "--json" and "=" not in before
        if word in names and not valued:
            return [word, *args[:place], *args[place + 1 :]]
    return [default, *args]
