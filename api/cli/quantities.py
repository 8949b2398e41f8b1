"""Quantities as text: sizes and times with three digits that count, shares, and counts with their nouns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

OFFSET_SHOWN_MS = 100
"""Offsets of clocks from here on are shown."""
UNKNOWN, NONE = "?", "-"
"""Texts for an unknown quantity, and for none."""
_BYTES = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("", 2**60))
_SECONDS = (("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("", 86_400_000))


def plural(count: float | None, one: str, many: str = "") -> str:
    """The word for this count: `token` for one, else `tokens`, or `many` where that is given (`is`, `are`)."""
    if count == 1:
        return one
    return many or (f"{one}es" if one.endswith("s") else f"{one}s")


def count_text(count: int, noun: str) -> str:
    """`1 request`, `2,000 requests`."""
    return f"{count:,} {plural(count, noun)}"


def number_text(number: float | None) -> str:
    """`1,234`; a question mark if it is not known."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def percent_text(share: float, digits: int = 1) -> str:
    """`12.5 %`."""
    return f"{100 * share:.{digits}f} %"


def ms_text(ms: float, digits: int = 1) -> str:
    """`12.5 ms`; without a fraction from 100 on."""
    return f"{ms:,.{digits}f} ms" if ms < 100 else f"{ms:,.0f} ms"


def bytes_text(size: float | None) -> str:
    """`812 B`, `24.1 MiB`; a question mark if it is not known."""
    return UNKNOWN if size is None else _scaled(size, _BYTES, " ")


def seconds_text(seconds: float | None) -> str:
    """`0.35s`, `12s`, `3.5h`, `7d`; a question mark if it is not known."""
    return UNKNOWN if seconds is None else _scaled(seconds, _SECONDS, "")


def offset_text(offset_ms: int) -> str:
    """`0.5 s ahead of the broker's`, `1.2 s behind the broker's`."""
    return f"{abs(offset_ms) / 1000:,.1f} s {'ahead of' if offset_ms > 0 else 'behind'} the broker's"


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
