"""What a person sees while parts start: a table that is kept up to date on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TextIO

REPEAT_EVERY_S = 15.0
"""Without a terminal, how often it is said what is still waited for."""


class Row(NamedTuple):
    """One part that is waited for."""

    name: str
    what: str
    state: str
    """`ready`, or what it is doing."""
    waited_s: float
    ready: bool


class Progress(Protocol):
    """Where a run tells what happens."""

    def say(self, line: str) -> None:
        """The line stands there for good."""

    def show(self, rows: Sequence[Row]) -> None:
        """This is how far the parts are now."""

    def done(self) -> None:
        """What was shown last stays."""


class PlainProgress:
    """Lines: each change once, and from time to time what is still waited for."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said: dict[str, str] = {}
        self._repeat_at_s = REPEAT_EVERY_S

    def say(self, line: str) -> None:
        """The line stands there for good."""
        print(line, file=self._out, flush=True)

    def show(self, rows: Sequence[Row]) -> None:
        """Rows that changed are said; all that wait, every REPEAT_EVERY_S."""
        waited_s = max((row.waited_s for row in rows), default=0.0)
        repeat = waited_s >= self._repeat_at_s
        if repeat:
            self._repeat_at_s = waited_s + REPEAT_EVERY_S
        for row in rows:
            if self._said.get(row.name) != row.state or (repeat and not row.ready):
                self._said[row.name] = row.state
                self.say(_line(row))

    def done(self) -> None:
        """The next show starts anew."""
        self._said.clear()
        self._repeat_at_s = REPEAT_EVERY_S


class TableProgress:
    """A table that is written over itself; lines that are said stay above it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown: list[str] = []

    def say(self, line: str) -> None:
        """The line stands there for good, above the table."""
        table = self._shown
        self._erase()
        self._out.write(f"{line}\n")
        self._draw(table)

    def show(self, rows: Sequence[Row]) -> None:
        """The table says this now; where the terminal is too small for all, only what is still waited for."""
        size = shutil.get_terminal_size()
        room = max(size.lines - 2, 1)
        if len(rows) > room:
            rows = [row for row in rows if not row.ready]
        lines = [_line(row)[: size.columns - 1] for row in rows[:room]]
        self._erase()
        self._draw(lines)

    def done(self) -> None:
        """The table stays as it is; what comes next stands below it."""
        self._shown = []

    def _erase(self) -> None:
        if self._shown:
            self._out.write(f"\x1b[{len(self._shown)}F\x1b[J")
            self._shown = []

    def _draw(self, lines: list[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._shown = lines


def progress_on(out: TextIO) -> Progress:
    """A table on a terminal, lines elsewhere."""
    return TableProgress(out) if out.isatty() else PlainProgress(out)


def _line(row: Row) -> str:
    return f"  {row.waited_s:6.1f} s  {row.name:<14} {row.what:<26} {row.state}"
