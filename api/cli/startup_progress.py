"""The progress of a start: a table that is kept up to date on a terminal, plain lines elsewhere.

The terminal or the pipe may be closed meanwhile. Then nothing is written any more, and the deployment goes on, or ends
in order.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from api.cli.output import colours_allowed
from api.cli.renderer import OK, Mark, Table, render
from api.deployment.readiness import Progress, ProgressRow

REPEAT_EVERY_S = 15.0
"""Without a terminal, the interval at which processes that are not ready are printed."""


class TerminalOutput:
    """A stream that may lose its reader; later output is dropped."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._gone = False

    def write(self, text: str) -> None:
        """The text is written, unless the reader is gone."""
        if self._gone:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            self._gone = True
            # bytes left in the buffer would fail again when the interpreter ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())


class PlainProgress:
    """Lines: each change once, and every REPEAT_EVERY_S the processes that are not ready."""

    def __init__(self, out: TextIO) -> None:
        self._out = TerminalOutput(out)
        self._states: dict[str, str] = {}
        self._repeat_at_s = REPEAT_EVERY_S

    def write_line(self, line: str) -> None:
        """The line stands there for good."""
        self._out.write(f"{line}\n")

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """Changed rows are printed; those not ready are printed again every REPEAT_EVERY_S."""
        waited_s = max((row.waited_s for row in rows), default=0.0)
        repeat = waited_s >= self._repeat_at_s
        if repeat:
            self._repeat_at_s = waited_s + REPEAT_EVERY_S
        lines = render([_table(rows)]).splitlines() if rows else []
        for row, line in zip(rows, lines, strict=True):
            if self._states.get(row.name) != row.state or (repeat and not row.ready):
                self._states[row.name] = row.state
                self.write_line(line)

    def done(self) -> None:
        """The next show starts anew."""
        self._states.clear()
        self._repeat_at_s = REPEAT_EVERY_S


class TableProgress:
    """A table that is written over itself; lines stay above it."""

    def __init__(self, out: TextIO, *, coloured: bool = False) -> None:
        self._out = TerminalOutput(out)
        self._coloured = coloured
        self._shown: list[str] = []

    def write_line(self, line: str) -> None:
        """The line stands there for good, above the table."""
        table = self._shown
        self._out.write(f"{self._erased()}{line}\n{self._drawn(table)}")

    def show(self, rows: Sequence[ProgressRow]) -> None:
        """The table has these rows; on a terminal too small for all, only those of processes that are not ready."""
        size = shutil.get_terminal_size()
        lines_max = max(size.lines - 2, 1)
        lines = self._lines(rows, size.columns - 1)
        if len(lines) > lines_max:
            lines = self._lines([row for row in rows if not row.ready], size.columns - 1)[:lines_max]
        self._out.write(self._erased() + self._drawn(lines))

    def _lines(self, rows: Sequence[ProgressRow], width: int) -> list[str]:
        return render([_table(rows)], width, coloured=self._coloured).splitlines() if rows else []

    def done(self) -> None:
        """The table stays as it is; later output stands below it."""
        self._shown = []

    def _erased(self) -> str:
        """The control sequence that erases the table."""
        return f"\x1b[{len(self._shown)}F\x1b[J" if self._shown else ""

    def _drawn(self, lines: list[str]) -> str:
        """The text that writes these lines as the table."""
        self._shown = lines
        return "".join(f"{line}\n" for line in lines)


def progress_on(out: TextIO) -> Progress:
    """A table on a terminal, lines elsewhere. NO_COLOR in the environment keeps the table without colours."""
    return TableProgress(out, coloured=colours_allowed()) if out.isatty() else PlainProgress(out)


def _table(rows: Sequence[ProgressRow]) -> Table:
    cells = [(f"{row.waited_s:6.1f} s", row.name, row.what, Mark(row.state, OK if row.ready else "")) for row in rows]
    return Table((), cells, "><<<", indent="  ")
