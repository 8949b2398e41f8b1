"""An origin: whose page asks, as browsers say it."""

from __future__ import annotations

import re

ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
"""Scheme and host in small letters, a port if it is not the scheme's own, nothing behind it."""


def check_origin(origin: str) -> None:
    """ValueError, which says what to write, for all that is not one exact origin."""
    if not ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is no origin: write each as browsers do, such as https://chat.example.org")
