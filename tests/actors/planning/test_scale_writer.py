"""The end of the scale stream: one planner at a time appends there."""

from __future__ import annotations

import asyncio

import pytest

from actors.planning import planner, scale_writer
from actors.planning.scale_writer import PlannerSuperseded, ScaleWriter
from core.codec import decode_message
from core.errors import Corrupt, Unavailable
from core.events.scale import NO_MODEL, ScaleApplied, ScaleEvent, WorkerStarting
from core.ids import StreamName, StreamSeq
from core.subjects import SCALE
from projections.scaling.scale_settings import ScaleSettings
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog
from tests.actors.planning.planner_run import PlannerRun


def order(start: int) -> ScaleEvent:
    return WorkerStarting(at_ms=start, start=start)


async def writer_on(log: PlannedLog) -> ScaleWriter:
    """A writer that stands at the stream's end."""
    writer = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    await writer.read()
    return writer


async def numbers(log: PlannedLog) -> list[int]:
    """The n of each message."""
    return [decode_message(record.payload).n async for record in log.read(SCALE, StreamSeq(1))]


async def test_a_successor_goes_on_behind_the_last_message() -> None:
    """The fold is that of all planners before, and their messages are one chain."""
    log = await PlannedLog().made()
    first = await writer_on(log)
    await first.append([order(1), ScaleApplied(at_ms=1, target=1, started=1, drained=0)])
    await first.append([order(2)])

    second = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    fold = (await second.read()).of(NO_MODEL)
    await second.append([order(3)])

    assert fold.starts == 2
    assert await numbers(log) == [0, 1, 2]


@pytest.mark.parametrize("kept", [11, 25])
async def test_a_successor_has_settings_and_capacity_of_a_log_that_dropped_its_first_messages(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Where the log keeps a few more periods than lie between two statements."""
    monkeypatch.setattr(planner, "RESTATE_PERIODS", 10)
    log, run = await PlannedLog().made(), PlannerRun(ScaleSettings(max=7))
    writer, recorded = await writer_on(log), 0
    for number in range(40):
        run.period(10, () if number else None)  # nothing is learned behind the first period
        await writer.append(run.events[recorded:])
        recorded = len(run.events)
    whole = run.planner.fold

    log.expire(SCALE, StreamSeq(40 - kept + 1))
    second = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    fold = (await second.read()).of(NO_MODEL)
    await second.append([order(1)])

    assert (fold.settings, fold.revision, fold.capacity) == (whole.settings, whole.revision, whole.capacity)
    assert fold.periods == whole.periods == 40
    assert (await numbers(log))[-1] == 40


async def test_the_log_refuses_a_planner_whose_successor_has_written() -> None:
    """However its own next message is numbered."""
    log = await PlannedLog().made()
    first, second = await writer_on(log), await writer_on(log)
    await second.append([order(1)])

    with pytest.raises(PlannerSuperseded):
        await first.append([order(2)])
    assert await numbers(log) == [0]


async def test_a_message_whose_answer_was_lost_stands_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is offered again, and found."""
    monkeypatch.setattr(scale_writer, "RETRY_S", 0.0)
    log = await PlannedLog().made()
    writer = await writer_on(log)
    append = log.append

    async def lost(
        stream: StreamName, subject: str, payload: bytes, message_id: str, expected_seq: StreamSeq
    ) -> StreamSeq:
        monkeypatch.setattr(log, "append", append)
        await append(stream, subject, payload, message_id, expected_seq)
        raise Unavailable("the answer is lost")

    monkeypatch.setattr(log, "append", lost)
    await writer.append([order(1)])
    await writer.append([order(2)])

    assert await numbers(log) == [0, 1]


async def test_a_log_that_stays_away_ends_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within APPEND_MAX_S."""
    monkeypatch.setattr(scale_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(scale_writer, "APPEND_MAX_S", 0.1)
    log = await PlannedLog().made()
    writer = await writer_on(log)

    async def away(*_: object) -> StreamSeq:
        raise Unavailable("away")

    monkeypatch.setattr(log, "append", away)
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable, match="has not taken"):
            await writer.append([order(1)])


async def test_nothing_is_decided_from_a_broken_chain() -> None:
    """A message that does not follow the one before it is named."""
    log = await PlannedLog().made()
    writer = await writer_on(log)
    await writer.append([order(1)])
    writer._head = bytes(16)
    await writer.append([order(2)])

    with pytest.raises(Corrupt, match="message 2 of the scale stream"):
        await writer_on(log)
