"""Progress: how far long work is, said on the terminal of whoever waits for it."""

from __future__ import annotations

import sys
import time

import click

from streams.archive.archive_export import Progress

SAY_EVERY_S = 0.5
CLEARED = "\r\x1b[K"


def told(what: str = "reading the log", unit: str = "messages") -> Progress:
    """Says on a terminal's stderr, now and then, how many of the units are done; at the end nothing is left of it."""
    last_s, said = time.monotonic(), False

    def tell(done: int, of: int) -> None:
        nonlocal last_s, said
        if done >= of and said:
            click.echo(CLEARED, err=True, nl=False)
            said = False
        elif done < of and time.monotonic() - last_s >= SAY_EVERY_S and sys.stderr.isatty():
            last_s, said = time.monotonic(), True
            click.echo(f"\r{what}: {done:,} of {of:,} {unit}", err=True, nl=False)

    return tell


def deciding() -> Progress:
    """The same of decisions that are made again."""
    return told("deciding again", "decisions")
