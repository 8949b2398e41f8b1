"""Moments as arguments: `-15m` is one, though it looks like options."""

from __future__ import annotations

import re
from typing import Any

import click

_AGO = re.compile(r"-\d+(?:\.\d+)?(?:ms|s|m|h|d)")
_MARK = "\0"
"""No word of a command line has it."""


class MomentType(click.ParamType[str]):
    """The text of a moment; what it means depends on what is asked (`replay.recording.moment.parse_moment`)."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As it was typed."""
        del param, ctx
        return str(value).removeprefix(_MARK)


MOMENT = MomentType()


class MomentCommand(click.Command):
    """A command whose arguments may be moments: `-1h` is not taken for `-1` and `-h`. All options that may be given
    one have the type MOMENT."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with times ago told apart."""
        return super().parse_args(ctx, [f"{_MARK}{word}" if _AGO.fullmatch(word) else word for word in args])
