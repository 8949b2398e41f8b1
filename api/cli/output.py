"""Output of commands: the result as a page or as JSON, progress, exit statuses."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec

from api.cli.renderer import Text, render
from api.process.printable import printable_json

EXIT_NO, EXIT_NOT_ASKED, EXIT_NOT_JUDGED, EXIT_INTERRUPTED = 1, 2, 3, 130
"""Exit statuses: the answer is no; the command could not do its work, or was called with words that it does not know
(as click has it); there is something to judge, and none of it could be judged; Ctrl-C ended it, as shells have it."""


def print_result(text: Text, value: Any, *, as_json: bool) -> None:
    """The result is printed: as text, or its value as JSON with stable keys."""
    if as_json:
        click.echo(json_text(value))
    else:
        print_text(text)


def print_text(text: Text) -> None:
    """The text is printed: to the width of a terminal and in colour, if this is one; NO_COLOR keeps it plain."""
    if sys.stdout.isatty():
        click.echo(render(text, shutil.get_terminal_size().columns, coloured=colours_allowed()))
    else:
        click.echo(render(text))


def colours_allowed() -> bool:
    """False if NO_COLOR is set: then terminals, too, get plain text."""
    return not os.environ.get("NO_COLOR")


def json_text(value: Any) -> str:
    """Indented; control characters stand as escapes."""
    return printable_json(msgspec.json.format(msgspec.json.encode(value)).decode())


Progress = Callable[[int, int], None]
"""Gets how many units are done, and how many there are."""
PROGRESS_EVERY_S = 0.5
CLEARED = "\r\x1b[K"


def show_progress(what: str = "reading the log", unit: str = "messages") -> Progress:
    """Shows on a terminal's stderr, every PROGRESS_EVERY_S, how many units are done; the line is cleared at the end."""
    last_s, shown = time.monotonic(), False

    def report(done: int, of: int) -> None:
        nonlocal last_s, shown
        if done >= of and shown:
            click.echo(CLEARED, err=True, nl=False)
            shown = False
        elif done < of and time.monotonic() - last_s >= PROGRESS_EVERY_S and sys.stderr.isatty():
            last_s, shown = time.monotonic(), True
            click.echo(f"\r{what}: {done:,} of {of:,} {unit}", err=True, nl=False)

    return report


def show_decision_progress() -> Progress:
    """The progress of decisions that are made again."""
    return show_progress("deciding again", "decisions")
