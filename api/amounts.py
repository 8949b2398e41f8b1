"""Sizes and times as people read them: three digits that count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
