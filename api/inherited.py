"""Sockets that a process is given open: by `contrail up`, by a service manager, or by a shell."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from core.errors import CallerError

FIRST = 3
"""The number of the first socket by systemd's convention (sd_listen_fds)."""


def inherited(number: int) -> socket.socket:
    """The open socket of that number, for this process alone; CallerError if it is none that takes connections."""
    try:
        listener = socket.socket(fileno=number)
    except OSError as error:
        raise CallerError(f"--fd {number}: that is no open socket ({error.strerror})") from error
    if listener.type != socket.SOCK_STREAM or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.detach()
        raise CallerError(f"--fd {number}: that is no TCP socket")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def handed_over(environment: Mapping[str, str]) -> int | None:
    """The number of the socket that a service manager handed over (LISTEN_FDS); None if it did not.

    CallerError if there are several: a front end has one.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(environment.get("LISTEN_FDS", "0"))
    if count > 1:
        raise CallerError(f"LISTEN_FDS is {count}: a front end has one socket; give it one ListenStream")
    return FIRST if count else None
