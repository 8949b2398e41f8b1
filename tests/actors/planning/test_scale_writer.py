"""The end of the scale stream: one planner at a time appends there."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from actors.planning import planner, scale_writer
from actors.planning.scale_writer import PlannerSuperseded, ScaleWriter
from core.codec import CHAIN_START, decode_message, digest, encode_readable
from core.errors import Corrupt, Unavailable
from core.events.scale import NO_MODEL, DemandCell, DemandRolled, ScaleApplied, ScaleEvent, WorkerStarting
from core.ids import SourceId, StreamName, StreamSeq
from core.subjects import ROUTING, SCALE, subject
from projections.scaling.scale_settings import ScaleSettings
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog
from tests.actors.planning.planner_run import PlannerRun

DAY_S = 86_400
BUDGET_BYTES = {"idle": 4_000_000, "4.5 a second": 8_000_000}
"""Of a day's messages at the default period: docs/planner.md has them."""
SIZED_PERIODS = 12
"""Periods between two with sizes."""


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


def minute_of_sizes(number: int) -> tuple[DemandCell, ...]:
    """45 classes, as a mixed workload has them in a minute."""
    counts = [1 + (number + place) % 12 for place in range(45)]
    return tuple(
        DemandCell(count, count * 40 * place**2, count * (17 + 8 * place), count * 60 * place**2)
        for place, count in enumerate(counts, 1)
    )


@pytest.mark.parametrize(("load", "arrivals"), [("idle", 0), ("4.5 a second", 22)])
async def test_a_day_of_periods_stays_within_its_budget(load: str, arrivals: int) -> None:
    """Every period has its demand and its decision. A day in JSON would be twice as large, or more."""
    log, run, periods = await PlannedLog().made(), PlannerRun(ScaleSettings(), ready=3), 120
    writer, recorded, as_json = await writer_on(log), 0, 0
    for number in range(periods):
        sizes = minute_of_sizes(number) if arrivals and number % SIZED_PERIODS == 0 else ()
        run.period(arrivals + number % 7 if arrivals else 0, sizes)
        events = [as_live(event, number) for event in run.events[recorded:]]
        await writer.append(events)
        as_json += len(encode_readable(SourceId("planner"), number, bytes(16), log.clock.wall_ms(), events))
        recorded = len(run.events)

    stored = sum([len(record.payload) async for record in log.read(SCALE, StreamSeq(1))])
    per_day = stored * DAY_S // (periods * run.planner.fold.settings.period_s)
    assert len(run.decisions) == periods
    assert BUDGET_BYTES[load] / 2 < per_day <= BUDGET_BYTES[load]
    assert as_json > 2 * stored


def as_live(event: ScaleEvent, number: int) -> ScaleEvent:
    """With numbers as large as those of a live fleet."""
    if not isinstance(event, DemandRolled):
        return event
    cursor = {ROUTING: (1_767_225_600_000, 4_000_000 + number)}
    return replace(event, cursor=cursor, running=10, first_token_ms=6_347, between_tokens_us=127_472)


async def test_a_stream_in_json_goes_on_in_rows() -> None:
    """An earlier program began it. The chain is one, and so is the fold."""
    log, run = await PlannedLog().made(), PlannerRun(ScaleSettings())
    head, seq, written = CHAIN_START, StreamSeq(0), 0
    for number in range(6):
        run.period(10, ())
        if number < 3:
            payload = encode_readable(SourceId("planner"), number, head, log.clock.wall_ms(), run.events[written:])
            seq = await log.append(SCALE, subject(NAMESPACE, SCALE, "planner"), payload, f"old:{number}", seq)
            head = digest(payload, log.key.chain_key)
        else:
            writer = await writer_on(log)
            await writer.append(run.events[written:])
        written = len(run.events)

    fold = (await ScaleWriter(log, NAMESPACE, log.key, log.clock).read()).of(NO_MODEL)
    assert await numbers(log) == list(range(6))
    assert (fold.periods, fold.last) == (6, run.planner.fold.last)
    events = [
        event async for record in log.read(SCALE, StreamSeq(1)) for event in decode_message(record.payload).events
    ]
    assert events == run.events
