"""The internals of nats-py that the room uses are there, and all of them are named here."""

from __future__ import annotations

import re
from pathlib import Path

from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from streams import jetstream

CLIENT = {"_close", "_current_server", "_public_nkey", "_server_info", "_server_pool", "_sid", "_status", "_transport"}
TRANSPORT = {"_io_writer"}


def test_the_library_still_has_them() -> None:
    """One that is gone is named, with what to do."""
    lost = {f"Client.{name}" for name in CLIENT - set(dir(Client()))}
    lost |= {f"TcpTransport.{name}" for name in TRANSPORT - set(dir(TcpTransport()))}  # type: ignore[no-untyped-call]

    assert not lost, f"nats-py has lost {sorted(lost)}: mend streams/jetstream/, then its range in pyproject.toml"


def test_all_that_the_room_uses_are_named() -> None:
    """Each private field of another object, in any module of the room, stands in the lists above."""
    room = Path(next(iter(jetstream.__path__)))
    lines = [line for path in room.glob("*.py") for line in path.read_text().splitlines() if "noqa: SLF001" in line]
    used = {name for line in lines for name in re.findall(r"(?<!self)\.(_\w+)", line)}

    assert used == CLIENT
