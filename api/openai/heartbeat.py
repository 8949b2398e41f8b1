"""Heartbeat: pings on a stream on which nothing is written for long, so that no client or proxy gives it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Heartbeat:
    """Runs while its `with` block does. Costs a timer for each stream, and nothing for a token."""

    __slots__ = ("_every_s", "_loop", "_ping", "_seen", "_timer", "_written")

    def __init__(self, every_s: float, written: Callable[[], int], ping: Callable[[], None]) -> None:
        """`written` counts what was written until now; `ping` is called when that is the same after `every_s`."""
        self._every_s = every_s
        self._written = written
        self._ping = ping
        self._seen = 0

    def __repr__(self) -> str:
        return f"<Heartbeat every {self._every_s} s>"

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = self._written()
        self._timer = self._loop.call_later(self._every_s, self._check)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        written = self._written()
        if written == self._seen:
            self._ping()
        self._seen = written
        self._timer = self._loop.call_later(self._every_s, self._check)
