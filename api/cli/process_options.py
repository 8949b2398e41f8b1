"""Command-line options that front ends and workers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from core.errors import CallerError
from core.ids import NAME


def _checked_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not NAME.fullmatch(name):
        raise CallerError(f"--name {name!r}: use 1 to 63 of a-z, 0-9 and '-'")
    return name


def name_option(default: str) -> Callable[..., Any]:
    """The option that gives a part its stable name: it stands in the log, in metrics, and in file names."""
    return click.option(
        "--name", default=default, show_default=True, callback=_checked_name, help="For people; stable."
    )


OPS_OPTION = click.option(
    "--ops",
    default="",
    metavar="HOST:PORT",
    help="Metrics, state and probes.  [default: a free port of --listen's host]",
)
