"""Quiet periods of a fleet at zero: recorded together, and counted again by a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.planning.quiet_periods import QUIET_S, QuietPeriods, is_at_rest
from actors.planning.scale_writer import ScaleWriter
from core.events.scale import NO_MODEL, SCALE_VERSION, DemandRolled, ScaleDecided
from core.ids import StreamSeq
from core.subjects import SCALE
from projections.scaling.scale_decision import FROM_ZERO, IDLE, burst_rate_m, rate_over_m
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog, arrival
from tests.actors.planning.planner_run import PlannerRun
from tests.actors.planning.test_demand_reader import period, reader_on, verified
from tests.projections.scaling.demands import PERIOD_S, end, rolled

AT_ZERO = ScaleSettings(min=0, zero_after_s=10)


def come_to_rest(run: PlannerRun) -> None:
    """The fleet has ended, and a decision says so."""
    for _ in range(40):
        run.period(0)
        run.ready = run.decisions[-1].target


def recorded_of(quiet: QuietPeriods, periods: list[DemandRolled]) -> list[DemandRolled]:
    """The periods as the log has them."""
    found: list[DemandRolled] = []
    for each in periods:
        if not quiet.hold({NO_MODEL: each}, rests=True):
            found += (*quiet.take({NO_MODEL: each})[NO_MODEL], each)
    return found


def test_a_minute_of_quiet_periods_is_two() -> None:
    """The first ends where the last but one of them did, and its cursor is that one's."""
    quiet = [replace(rolled(number, 0), cursor={"routing": (1, number)}) for number in range(1, 25)]
    found = recorded_of(QuietPeriods(), quiet)
    most_s = QUIET_S - PERIOD_S
    assert found == [replace(quiet[10], period_s=most_s), quiet[11], replace(quiet[22], period_s=most_s), quiet[23]]


def test_the_rates_of_a_first_request_are_as_if_each_period_stood_alone() -> None:
    """A period of 40 s in the last ten would thin the burst out."""
    periods = [*(rolled(number, 0) for number in range(1, 9)), rolled(9, 30)]
    found = recorded_of(QuietPeriods(), periods)
    assert [each.period_s for each in found] == [7 * PERIOD_S, PERIOD_S, PERIOD_S]
    assert rate_over_m(found, 10) == rate_over_m(periods, 10) == 3_000
    assert burst_rate_m(found) == burst_rate_m(periods) == 3_000


def test_the_rates_behind_a_quiet_minute_are_as_if_each_period_stood_alone() -> None:
    """The first request comes in the period behind it."""
    periods = [*(rolled(number, 0) for number in range(1, 13)), rolled(13, 30)]
    found = recorded_of(QuietPeriods(), periods)
    assert rate_over_m(found, 10) == rate_over_m(periods, 10) == 3_000


@pytest.mark.parametrize(
    "change", [{"arrivals": 1}, {"refused": 1}, {"waiting": 1}, {"running": 1}, {"ended": 1}, {"since": 7}]
)
def test_a_period_with_a_request_is_recorded_at_once(change: dict[str, int]) -> None:
    """So is one whose count began anew, and each one of a fleet that is not at rest."""
    quiet = QuietPeriods()
    assert not quiet.hold({NO_MODEL: replace(rolled(1, 0), **change)}, rests=True)
    assert not quiet.hold({NO_MODEL: rolled(1, 0)}, rests=False)


def test_periods_of_several_models_are_held_and_recorded_together() -> None:
    """A request for one ends it for all, and no model's rates are thinned."""
    quiet, idle = QuietPeriods(), [rolled(number, 0) for number in range(1, 4)]
    assert all(quiet.hold({"a": each, "b": each}, rests=True) for each in idle)
    assert not quiet.hold({"a": rolled(4, 1), "b": rolled(4, 0)}, rests=True)
    last = {"a": rolled(4, 1), "b": rolled(4, 0)}
    earlier = quiet.take(last)
    two_as_one = replace(idle[1], period_s=2 * PERIOD_S)
    assert earlier == {"a": (two_as_one, idle[2]), "b": (two_as_one, idle[2])}
    assert quiet.take(last) == {"a": (), "b": ()}


def test_only_a_fleet_at_zero_rests() -> None:
    """By a decision of these rules: earlier ones could start a worker for a forecast."""
    run = PlannerRun(AT_ZERO)
    come_to_rest(run)
    fold = run.planner.fold
    assert isinstance(fold.last, ScaleDecided)
    assert (fold.last.target, fold.last.bound) == (0, IDLE)
    assert is_at_rest(fold, 0, 0)
    assert not is_at_rest(fold, 1, 0)
    assert not is_at_rest(fold, 0, 1)
    assert not is_at_rest(ScaleFold(), 0, 0)
    fold.last = replace(fold.last, version=SCALE_VERSION - 1)
    assert not is_at_rest(fold, 0, 0)


async def test_a_replay_counts_the_recorded_periods(tmp_path: Path) -> None:
    """Requests before and behind the quiet ones are counted where they came."""
    log = await PlannedLog().made()
    reader, quiet = await reader_on(log, {}, 0), QuietPeriods()
    await log.write(*arrival("a"), end("a"))
    periods = [await period(log, reader)]
    periods += [await period(log, reader) for _ in range(17)]
    await log.write(*arrival("b"), end("b"))
    periods.append(await period(log, reader))
    await reader.stop()

    found = recorded_of(quiet, periods)
    assert [(each.period_s, each.arrivals) for each in found] == [(5, 1), (55, 0), (5, 0), (20, 0), (5, 0), (5, 1)]
    result = await verified(log, found, tmp_path / "quiet.contrail")
    assert result.periods == result.periods_verified == len(found)


async def test_a_day_at_zero_stays_within_its_budget() -> None:
    """docs/planner.md has it. The decision on a held period's end is the one that every period had."""
    log, run, quiet = await PlannedLog().made(), PlannerRun(AT_ZERO), QuietPeriods()
    writer = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    await writer.read()
    come_to_rest(run)
    await writer.append(run.events)
    before, written = (await log.state(SCALE)).last_seq, len(run.events)
    for _ in range(120):
        run.quiet_period(quiet)
        if len(run.events) > written:
            await writer.append(run.events[written:])
            written = len(run.events)
    run.period(3, waiting=3)

    stored = [len(record.payload) async for record in log.read(SCALE, StreamSeq(before + 1))]
    assert len(stored) == 10
    assert sum(stored) * 86_400 // (120 * PERIOD_S) < 500_000
    assert run.decisions[-1].bound == FROM_ZERO
