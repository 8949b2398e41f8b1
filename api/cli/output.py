"""Output that commands share: sizes and times with three digits that count, a table as plain text, progress, exit
statuses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import click

EXIT_NO, EXIT_NOT_ASKED, EXIT_INTERRUPTED = 1, 2, 130
"""Exit statuses: the answer is no; the command could not do its work; Ctrl-C ended it, as shells have it."""
UNKNOWN = "?"
_BYTES = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("", 2**60))
_SECONDS = (("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("", 86_400_000))


def bytes_text(size: float | None) -> str:
    """`812 B`, `24.1 MiB`; a question mark if it is not known."""
    return UNKNOWN if size is None else _scaled(size, _BYTES, " ")


def seconds_text(seconds: float | None) -> str:
    """`0.35s`, `12s`, `3.5h`, `7d`; a question mark if it is not known."""
    return UNKNOWN if seconds is None else _scaled(seconds, _SECONDS, "")


def number_text(number: float | None) -> str:
    """Thousands apart; a question mark if it is not known."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def _scaled(value: float, units: Sequence[tuple[str, int]], gap: str) -> str:
    for (name, size), (_, above) in pairwise(units):
        if value < above:
            return f"{_short(value / size)}{gap}{name}"
    name, size = units[-2]
    return f"{value / size:,.0f}{gap}{name}"


def _short(value: float) -> str:
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


GAP = "  "


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Lines of the table, the heads first; `align` has a `<` or `>` for each column."""
    assert len(align) == len(heads)
    cells = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    return [GAP.join(map(_cell, row, widths, align)).rstrip() for row in cells]


def _cell(text: str, width: int, align: str) -> str:
    return text.ljust(width) if align == "<" else text.rjust(width)


Progress = Callable[[int, int], None]
"""Gets how many units are done, and how many there are."""
SAY_EVERY_S = 0.5
CLEARED = "\r\x1b[K"


def show_progress(what: str = "reading the log", unit: str = "messages") -> Progress:
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


def show_decision_progress() -> Progress:
    """The same of decisions that are made again."""
    return show_progress("deciding again", "decisions")
