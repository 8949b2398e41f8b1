"""Tokens leave at once: TCP_NODELAY on both ends of a link, as the kernel says, on asyncio's loop and on uvloop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import linked, port, up
from tests.fixtures.loops import Run, run

__all__ = ["run"]


def connected_to(address: str) -> Iterator[socket.socket]:
    """Copies of this process's connections to that address, of both ends."""
    host, _, number = address.rpartition(":")
    for number_of_file in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        try:
            file = os.dup(number_of_file)
        except OSError:
            continue
        try:
            copy = socket.socket(fileno=file)
        except OSError:
            os.close(file)
            continue
        with copy, suppress(OSError):
            if (host, int(number)) in (copy.getsockname(), copy.getpeername()):
                yield copy


def test_nothing_waits_for_more_on_a_link(run: Run) -> None:
    """The worker's port and the replica's link alike."""

    async def scenario() -> None:
        async with port(ScriptedHost()) as address, linked(address) as (link, _):
            await up(link)
            delays = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in connected_to(address)]
            assert len(delays) == 2
            assert all(delays)

    run(scenario)
