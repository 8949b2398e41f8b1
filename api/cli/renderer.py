"""The renderer of all commands: lines, tables, facts and notes become text for a pipe, or for a terminal.

In a pipe each row is one line, of the width that it needs, without colour. On a terminal text is wrapped to its width.
Control characters stand as escapes: names and reasons come from logs and files that others wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

import click

from api.process.printable import printable

OK, WARNING, PROBLEM = "ok", "warning", "problem"
COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red"}
GAP = "  "
NOTES_WIDTH = 110
"""Width of notes in a pipe, and on wider terminals."""
TEXT_WIDTH_MIN = 16
"""Least width to which texts in a table are wrapped."""


class Mark(NamedTuple):
    """A line or a cell with a status, which gives it its colour on a terminal."""

    text: str
    status: str
    """`ok`, `warning` or `problem`; empty for no colour."""


class Command(NamedTuple):
    """A line to be copied into a shell, which is never wrapped."""

    text: str


Cell = str | Mark


class Table(NamedTuple):
    """Rows below their heads, if it has heads."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    align: str
    """A `<` or `>` for each column."""
    indent: str = ""


class Facts(NamedTuple):
    """Titles, each with a text beside it; a text without a title continues the one above."""

    rows: Iterable[tuple[str, str]]
    column: int
    """Column where texts begin, behind the indent."""
    indent: str = "  "


class Notes(NamedTuple):
    """Sentences in a list below its title."""

    title: str
    lines: Iterable[str]


Block = str | Mark | Command | Table | Facts | Notes
Text = Iterable[Block]


def render(text: Text, width: int | None = None, *, coloured: bool = False) -> str:
    """The text as lines; without a width nothing but notes is wrapped."""
    return "\n".join(line for block in text for line in _lines(block, width, coloured))


def _lines(block: Block, width: int | None, coloured: bool) -> Iterator[str]:
    match block:
        case Table():
            yield from _table(block, width, coloured)
        case Facts(rows, column, indent):
            for title, text in rows:
                yield from _wrapped(f"{indent}{title:<{column}}{text}", width, len(indent) + column)
        case Notes(title, lines):
            yield printable(title)
            for line in lines:
                yield from _wrapped(f"- {line}", min(width or NOTES_WIDTH, NOTES_WIDTH), 2)
        case Command(text):
            yield printable(text)
        case Mark(text, status):
            yield from (_styled(line, status, coloured) for line in _lines(text, width, coloured))
        case str():
            yield from _wrapped(block, width, len(block) - len(block.lstrip()) + 2)


def _wrapped(text: str, width: int | None, hanging: int) -> list[str]:
    """The text in lines of the width; all but the first begin at `hanging`."""
    text = printable(text)
    if width is None or len(text) <= width:
        return [text]
    return wrap(text, width, subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False)


def _styled(text: str, status: str, coloured: bool) -> str:
    return click.style(text, fg=COLOURS[status]) if coloured and status else text


def _table(table: Table, width: int | None, coloured: bool) -> Iterator[str]:
    body = [[_mark(cell) for cell in row] for row in table.rows]
    rows = [[Mark(head, "") for head in table.heads], *body] if table.heads else body
    widths = [max(len(cell.text) for cell in column) for column in zip(*rows, strict=True)]
    if width is not None:
        least = [[_word_width(head) for head in table.heads]] if table.heads else []
        least += [[_least(cell.text, align) for cell, align in zip(row, table.align, strict=True)] for row in body]
        gaps = len(GAP) * (len(widths) - 1) + len(table.indent)
        widths = _narrowed(widths, list(map(max, zip(*least, strict=True))), width - gaps)
    for row in rows:
        wrapped = [_wrapped(cell.text, space, 0) for cell, space in zip(row, widths, strict=True)]
        for texts in zip_longest(*wrapped, fillvalue=""):
            cells = [
                _cell(text, space, align, cell.status, coloured)
                for text, space, align, cell in zip(texts, widths, table.align, row, strict=True)
            ]
            yield (table.indent + GAP.join(cells)).rstrip()


def _mark(cell: Cell) -> Mark:
    text, status = cell if isinstance(cell, Mark) else (cell, "")
    return Mark(printable(text), status)


def _cell(text: str, width: int, align: str, status: str, coloured: bool) -> str:
    space, shown = " " * (width - len(text)), _styled(text, status, coloured)
    return shown + space if align == "<" else space + shown


def _least(cell: str, align: str) -> int:
    """The width below which a cell is not wrapped: figures are never, texts at TEXT_WIDTH_MIN and between words."""
    return len(cell) if align == ">" else max(_word_width(cell), min(len(cell), TEXT_WIDTH_MIN))


def _word_width(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _narrowed(widths: list[int], least: list[int], available: int) -> list[int]:
    """The widths so that they fit, the widest columns made narrower first; none becomes narrower than its least."""
    narrowed = list(widths)
    while sum(narrowed) > available:
        wide = [at for at, width in enumerate(narrowed) if width > least[at]]
        if not wide:
            break
        narrowed[max(wide, key=narrowed.__getitem__)] -= 1
    return narrowed
