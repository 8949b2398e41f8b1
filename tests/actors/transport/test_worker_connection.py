"""What a replica sends to one worker in a turn of its loop takes two writes at most, and stays in order."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from actors.transport.worker_connection import WorkerConnection


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing waits."""

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
async def wire() -> tuple[WorkerConnection, Transport]:
    line, transport = WorkerConnection(), Transport()
    line.connection_made(cast(asyncio.Transport, transport))
    return line, transport


async def test_the_first_frame_of_a_turn_leaves_at_once_and_the_rest_together(
    wire: tuple[WorkerConnection, Transport],
) -> None:
    """A worker that idles begins with the first while the others are still being decided on."""
    line, transport = wire
    for frame in (b"1", b"2", b"3"):
        line.send(frame)
    assert transport.writes == [b"1"]
    await asyncio.sleep(0)
    assert transport.writes == [b"1", b"23"]


async def test_a_turn_behind_another_that_had_more_goes_on_in_order(wire: tuple[WorkerConnection, Transport]) -> None:
    """Whatever is sent while the rest of the turn before is on its way."""
    line, transport = wire
    line.send(b"1")
    line.send(b"2")
    await asyncio.sleep(0)
    line.send(b"3")
    for _ in range(3):
        await asyncio.sleep(0)
    line.send(b"4")
    assert b"".join(transport.writes) == b"1234"
    assert transport.writes[-1] == b"4"


async def test_nothing_is_written_to_a_connection_that_closes(wire: tuple[WorkerConnection, Transport]) -> None:
    """The rest of the turn in which it began to close is lost with it."""
    line, transport = wire
    line.send(b"1")
    line.send(b"2")
    transport.closing = True
    line.send(b"3")
    await asyncio.sleep(0)
    assert transport.writes == [b"1"]
