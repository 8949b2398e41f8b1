"""Ports on loopback for servers of our own."""

from __future__ import annotations

import random
import socket

from core.errors import CallerError, Unavailable

HOST = "127.0.0.1"
RANGE = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections (32768 on): those could take a port while its server
restarts, and a client that tries a dead port of that kind can even connect to itself."""
ATTEMPTS_MAX = 100


class PortTaken(CallerError):
    """Another process listens on the port."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is in use: name another one, or none to have a free one taken")
        self.port = port


def free_port() -> int:
    """A port without a listener now; another process may still be quicker."""
    for port in random.sample(RANGE, ATTEMPTS_MAX):
        if is_free(port):
            return port
    raise Unavailable(f"none of {ATTEMPTS_MAX} ports tried between {RANGE.start} and {RANGE.stop} is free")


def is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as probe:
        # as servers do, so that connections of an earlier one, still in TIME_WAIT, do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def reserve(port: int) -> socket.socket | None:
    """A socket that keeps the free port for this user while it is open, and never listens.

    Only a process of this user can listen there, with SO_REUSEPORT. None while connections of an earlier server without
    that option are in TIME_WAIT.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        kept.bind((HOST, port))
    except OSError:
        kept.close()
        return None
    return kept
