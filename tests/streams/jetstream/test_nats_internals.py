"""The internals of nats-py that the room uses are there, and all of them are named here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from core.errors import Refused
from streams import jetstream
from streams.jetstream.nats_client import NatsClient

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


@pytest.mark.parametrize("before", ["", "import aiohttp; "])
def test_aiohttp_is_not_imported(before: str) -> None:
    """It takes a sixth of a process's start. Others may import it before and afterwards."""
    script = (
        f"import sys; {before}from streams.jetstream import jetstream_log; print('aiohttp' in sys.modules); "
        "import aiohttp; print(aiohttp.ClientSession.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(bool(before)), "ClientSession"]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_websockets_are_refused(scheme: str) -> None:
    """In a sentence, without a try to connect: the library would need aiohttp."""
    with pytest.raises(Refused, match="NATS is spoken over TCP or TLS: give a nats:// or tls:// address"):
        await NatsClient([f"{scheme}://127.0.0.1:1"], None, "test").open()
