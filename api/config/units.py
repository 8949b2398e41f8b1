"""Durations and sizes as people write them: `7d`, `30m`, `50GiB`."""

from __future__ import annotations

import re

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
BYTES = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
DURATION = "a duration: write 10s, 30m, 12h or 7d"
NONE = "0s"


def duration_s(text: str) -> int:
    """Seconds in `10s`, `30m`, `12h`, `7d`; ValueError says what may be written."""
    return _parsed(text, SECONDS, DURATION)


def delay_s(text: str) -> int:
    """The same, and `0s` for none."""
    return 0 if text.strip() == NONE else _parsed(text, SECONDS, DURATION)


def size_bytes(text: str) -> int:
    """Bytes in `64KiB`, `512MiB`, `50GiB` (or KB, MB, GB, TB); ValueError says what may be written."""
    return _parsed(text, BYTES, "a size: write 64KiB, 512MiB or 50GiB")


def _parsed(text: str, units: dict[str, int], meant: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {meant}")
    whole = round(float(match[1]) * units[match[2]])
    if whole < 1:
        raise ValueError(f"{text!r} must be more than nothing")
    return whole
