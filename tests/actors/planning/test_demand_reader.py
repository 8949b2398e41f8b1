"""Demand of the routing stream, counted over several planners: each arrival once, and verified again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from actors.planning.demand_reader import ABSENCE_MAX_MS, DemandReader
from actors.planning.scale_writer import ScaleWriter
from core.events import Event
from core.events.scale import NO_MODEL, DemandRolled, ScaleSettingsChanged
from core.subjects import ROUTING
from projections.scaling.scale_settings import ScaleSettings
from projections.scaling.speed_model import SpeedModel
from replay.verify.scale_checks import ScaleResult, verify_scale
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog, arrival
from tests.fixtures.eventually import eventually
from tests.projections.scaling.demands import end
from tests.replay.recorded import recorded

PERIOD_MS = 5_000


async def reader_on(log: PlannedLog, cursor: Mapping[str, tuple[int, int]], rolled_ms: int) -> DemandReader:
    """A reader that has read to the stream's end."""
    reader = DemandReader(log, {NO_MODEL: ScaleSettings()}, [SpeedModel("m")], log.clock.wall_ms)
    await reader.start(cursor, rolled_ms)
    await read(log, reader)
    return reader


async def read(log: PlannedLog, reader: DemandReader) -> None:
    last = (await log.state(ROUTING)).last_seq
    await eventually(lambda: reader.cursor[ROUTING][1] >= last, "the stream's end")
    assert await reader.caught_up()


async def period(log: PlannedLog, reader: DemandReader) -> DemandRolled:
    """The period that ends now, after its time."""
    log.clock.advance(PERIOD_MS)
    await read(log, reader)
    return reader.roll(log.clock.wall_ms())[NO_MODEL]


async def verified(log: PlannedLog, periods: list[DemandRolled], path: Path) -> ScaleResult:
    """The periods, written by one planner after the other, counted again."""
    for number, each in enumerate(periods):
        writer = ScaleWriter(log, NAMESPACE, log.key, log.clock)
        await writer.read()
        first = [ScaleSettingsChanged(revision=1, settings=ScaleSettings().to_mapping())] if not number else []
        await writer.append([*first, each])
    with await recorded(log, NAMESPACE, log.key, path) as recording:
        found = verify_scale(recording)
    assert found is not None
    return found


async def test_a_successor_knows_the_requests_that_are_open(tmp_path: Path) -> None:
    """A request that came before, and is routed again after, is no arrival; its end has its size."""
    log = await PlannedLog().made()
    await log.write(*arrival("old"))
    first = await reader_on(log, {}, 0)
    await log.write(*arrival("a"), *arrival("b"))
    one = await period(log, first)
    await log.write(*arrival("c"))
    await first.stop()

    second = await reader_on(log, one.cursor, one.at_ms)
    await log.write(*arrival("a"), end("a"), end("old"))
    two = await period(log, second)
    await log.write(end("c"))
    three = await period(log, second)

    assert (one.arrivals, one.since) == (2, 2)
    assert (two.arrivals, two.ended, two.running, two.since) == (1, 2, 2, 1)
    assert (three.arrivals, three.ended, three.since) == (0, 1, UNSET)
    found = await verified(log, [one, two, three], tmp_path / "log")
    assert (found.periods_verified, found.periods_different, found.periods_not_judged) == (3, 0, 0)


async def test_a_wrong_start_of_a_count_is_found(tmp_path: Path) -> None:
    """One that leaves out a message of the period."""
    log = await PlannedLog().made()
    reader = await reader_on(log, {}, 0)
    await log.write(*arrival("a"))
    await log.write(*arrival("b"))
    rolled = await period(log, reader)

    found = await verified(log, [replace(rolled, since=2)], tmp_path / "log")

    assert (found.periods_different, found.differences[0].term) == (1, "arrivals")


async def test_demand_of_a_short_absence_is_counted_and_that_of_a_long_one_is_not(tmp_path: Path) -> None:
    """The first period is as long as the absence, so its rate is right."""
    log = await PlannedLog().made()
    first = await reader_on(log, {}, 0)
    one = await period(log, first)
    await first.stop()
    await log.write(*arrival("a"))
    log.clock.advance(60_000)
    second = await reader_on(log, one.cursor, one.at_ms)
    two = await period(log, second)
    await second.stop()
    await log.write(*arrival("b"))
    log.clock.advance(ABSENCE_MAX_MS + 1)
    third = await reader_on(log, two.cursor, two.at_ms)
    three = await period(log, third)

    assert (two.arrivals, two.period_s) == (1, 65)
    assert (three.arrivals, three.period_s) == (0, 5)
    found = await verified(log, [one, two, three], tmp_path / "log")
    assert (found.periods_verified, found.periods_different) == (3, 0)


async def test_a_stream_that_was_made_anew_is_counted_from_its_start() -> None:
    """Requests of the stream before are not known any more."""
    log = await PlannedLog().made()
    reader = await reader_on(log, {}, 0)
    await log.write(*arrival("a"))
    await period(log, reader)
    log.remake(ROUTING)
    log.begin_anew()
    await log.write(*arrival("b"))
    await eventually(lambda: reader.cursor[ROUTING][1] == 1, "the new stream")
    rolled = await period(log, reader)

    assert (rolled.arrivals, rolled.running, rolled.since) == (1, 1, 1)


async def test_two_models_are_counted_from_one_stream(tmp_path: Path) -> None:
    """Over two planners, of which the second knows open requests of both; and counted again from the log."""
    models = {"m": ScaleSettings(), "n": ScaleSettings(ttft_ms=100)}
    log = await PlannedLog().made()

    async def reader_at(cursor: Mapping[str, tuple[int, int]], rolled_ms: int) -> DemandReader:
        reader = DemandReader(log, models, [], log.clock.wall_ms)
        await reader.start(cursor, rolled_ms)
        await read(log, reader)
        return reader

    async def both(reader: DemandReader) -> list[DemandRolled]:
        log.clock.advance(PERIOD_MS)
        await read(log, reader)
        return list(reader.roll(log.clock.wall_ms()).values())

    def of_n(name: str) -> list[Event]:
        return [replace(event, model="n") for event in arrival(name)]

    first = await reader_at({}, 0)
    await log.write(*arrival("a"), *of_n("b"), *of_n("c"))
    one = await both(first)
    await first.stop()
    second = await reader_at(one[0].cursor, one[0].at_ms)
    await log.write(end("a"), end("b"), *of_n("d"))
    two = await both(second)
    await log.write(end("d"), end("c"))
    three = await both(second)

    assert [[(each.arrivals, each.ended, each.attained) for each in period] for period in (one, two, three)] == [
        [(1, 0, 0), (2, 0, 0)],
        [(0, 1, 1), (1, 1, 0)],
        [(0, 0, 0), (0, 2, 0)],
    ]
    settings = [
        ScaleSettingsChanged(revision=1, settings=each.to_mapping(), model=model) for model, each in models.items()
    ]
    writer = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    await writer.read()
    for number, each in enumerate((one, two, three)):
        await writer.append([*([] if number else settings), *each])
    with await recorded(log, NAMESPACE, log.key, tmp_path / "run") as recording:
        found = verify_scale(recording)
    assert found is not None
    assert (found.periods, found.periods_verified) == (6, 6), found.differences
    await second.stop()
