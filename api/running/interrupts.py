"""What Ctrl-C means: the first time drain, the second time hurry."""

from __future__ import annotations

import asyncio
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Two events, set by signals from `install` on."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(self) -> None:
        """Signals set the events, and do nothing else any more."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.interrupt)

    def interrupt(self) -> None:
        """One more signal came."""
        (self.hurry if self.drain.is_set() else self.drain).set()
