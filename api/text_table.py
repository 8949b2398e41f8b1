"""A table as plain text."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Lines of the table, the heads first; `align` has a `<` or `>` for each column."""
    assert len(align) == len(heads)
    cells = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    return [GAP.join(map(_cell, row, widths, align)).rstrip() for row in cells]


def _cell(text: str, width: int, align: str) -> str:
    return text.ljust(width) if align == "<" else text.rjust(width)
