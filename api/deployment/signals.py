"""Signals to `contrail up`: Ctrl-C drains, and hurries the second time; SIGHUP and SIGUSR1 restart processes."""

from __future__ import annotations

import asyncio
import os
import signal

ENDS = (signal.SIGINT, signal.SIGTERM)
RESTARTS = signal.SIGUSR1
"""Also without a terminal, where it is what service managers send for a reload: SIGHUP."""


class SignalEvents:
    """Three events, set by signals from `install` on."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()
        self.restart = asyncio.Event()

    def install(self) -> None:
        """Signals set the events, and do nothing else any more.

        SIGHUP ends what has a terminal, because it says that the terminal is gone; it restarts what has none; and
        where it was to be ignored (`nohup`) it still is.
        """
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self.interrupt)
        loop.add_signal_handler(RESTARTS, self.restart.set)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.interrupt if has_terminal() else self.restart.set)

    def interrupt(self) -> None:
        """One more signal came that ends us."""
        (self.hurry if self.drain.is_set() else self.drain).set()


def has_terminal() -> bool:
    """Whether this process has a terminal whose end it is told of."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
