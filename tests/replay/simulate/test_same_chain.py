"""A live outbox and a simulated source are one machine: equal events give equal logs, whatever is changed in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.membership.routing_publisher import LIMITS
from core.events import BlocksRemoved
from core.ids import SourceId, StreamSeq
from core.prompt import hashes_to_bytes
from core.subjects import ROUTING, subject
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import CHAIN_KEY, KEY, NAMESPACE, START_MS, SimulatedLog, SimulatedSource
from replay.simulate.simulation import simulate
from replay.simulate.virtual_time import Agenda
from streams.memory.memory_log import MemoryLog
from streams.outbox import backlog
from streams.outbox.outbox import Outbox
from streams.outbox.source_chain import SourceChain
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.test_simulated_source import Kept
from tests.simulation.loop import WALL_START_MS, VirtualClock, VirtualLoop

SOURCE = SourceId("00000000000000aa")
PUTS = ((0, 1), (1_000, 1), (3_000, 5), (4_000, 2), (12_000, 1), (60_000, 1), (61_000, 2_000), (90_000, 3))
"""When, and how many events: together, within a pace, after a pause, more than a message holds."""
Message = tuple[int, bytes]
"""When the log stored it, and its bytes."""


def event(blocks: int) -> BlocksRemoved:
    return BlocksRemoved(hashes=hashes_to_bytes(range(1 + blocks % 40)))


def live() -> list[Message]:
    """The log of an outbox in an event loop."""
    loop = VirtualLoop()
    clock = VirtualClock(loop, START_MS - WALL_START_MS)
    log = MemoryLog(NAMESPACE, clock)

    async def publish() -> list[Message]:
        await log.ensure([ROUTING])
        outbox = Outbox(
            log, ROUTING, subject(NAMESPACE, ROUTING, SOURCE), SOURCE, CHAIN_KEY, clock,
            on_overflow=list, on_superseded=lambda _: None, limits=LIMITS,
        )  # fmt: skip
        task = asyncio.create_task(outbox.run())
        for at_us, count in PUTS:
            await asyncio.sleep(at_us / 1_000_000 - loop.time())
            for number in range(count):
                outbox.put(event(number))
        assert await outbox.drain(5)
        task.cancel()
        return [(record.time_ms, record.payload) async for record in log.read(ROUTING, StreamSeq(1))]

    try:
        return loop.run_until_complete(publish())
    finally:
        loop.close()


def simulated() -> list[Message]:
    """The log of a source in a simulation."""
    kept, agenda = Kept(), Agenda()
    source = SimulatedSource(SimulatedLog(agenda, kept), ROUTING, SOURCE, limits=LIMITS)  # type: ignore[arg-type]

    def put(count: int) -> None:
        for number in range(count):
            source.put(event(number))

    for at_us, count in PUTS:
        agenda.put(at_us, lambda count=count: put(count))  # type: ignore[misc]
    while agenda.advance():
        pass
    return [(record.time_ms, record.payload) for record in kept.records]


def without_a_pace(patch: pytest.MonkeyPatch) -> None:
    schedule = SourceChain._schedule

    def new(self: SourceChain, now_us: int) -> None:
        self._next_start_us = 0
        schedule(self, now_us)

    patch.setattr(SourceChain, "_schedule", new)


def with_small_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backlog, "ENVELOPE_BYTES", 250 * 1024)


def test_equal_events_give_equal_logs() -> None:
    """Byte for byte, at the same times."""
    assert live() == simulated()
    assert len(live()) == 7


@pytest.mark.parametrize("plant", [without_a_pace, with_small_messages])
def test_a_change_to_the_machine_changes_both(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Alike."""
    before = live()
    plant(monkeypatch)
    assert live() == simulated() != before


def test_a_change_to_the_machine_changes_a_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica without a pace writes more messages."""

    def messages(name: str) -> int:
        wanted: dict[str, Any] = {"workers": 2, "engine": ENGINE}
        simulate(Options(**wanted), families(40), archive=tmp_path / name)
        with Recording.open(tmp_path / name, KEY) as recording:
            return sum(1 for _ in recording.frames(ROUTING))

    before = messages("before")
    without_a_pace(monkeypatch)
    assert messages("after") > before
