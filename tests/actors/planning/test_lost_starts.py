"""Workers that die while they start, again and again: they are replaced, and their replacements stay."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from actors.planning.planner import PeriodEnded, Planner, RecordEvent, WorkerReady
from core.events import ScaleDecided, ScaleFailed
from core.events.scale import ScaleEvent
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, START_MS, rolled

SETTINGS = ScaleSettings(startup_s=60, down_window_s=60, max=8)
PER_MINUTE = 60 // PERIOD_S
BUSY, CALM = [100] * 7 * PER_MINUTE, [10] * 3 * PER_MINUTE
"""Arrivals of each period: work of four workers, and of one."""


class Look(NamedTuple):
    """The fleet behind one decision."""

    target: int
    ready: tuple[int, ...]
    """Numbers of the workers that serve …"""
    starting: tuple[int, ...]
    """… and of those that do not."""


class NumberedFleet:
    """A planner, and a hand that follows its target: a new worker has the lowest free number, and takes its start-up
    time. Workers with `dying` numbers never serve."""

    def __init__(self, dying: int, *, unready_goes: bool) -> None:
        """Of too many workers, one that does not serve goes first if `unready_goes`; else the highest number goes."""
        self.planner = Planner(SETTINGS, CAPACITY, has_hand=True)
        self.events: list[ScaleEvent] = []
        self.looks: list[Look] = []
        self._dying = dying
        self._unready_goes = unready_goes
        self._ready = {0}
        self._starting: dict[int, int] = {}
        """By number, the time when the worker serves."""
        self._periods = 0

    def periods(self, arrivals: list[int]) -> list[Look]:
        """So many more periods; the fleet behind each decision."""
        begin = len(self.looks)
        for each in arrivals:
            self._period(each)
        return self.looks[begin:]

    def _period(self, arrivals: int) -> None:
        self._periods += 1
        now_ms = START_MS + self._periods * PERIOD_S * 1000
        come = [number for number, at_ms in self._starting.items() if at_ms <= now_ms and number != self._dying]
        for number in come:
            del self._starting[number]
        self._ready.update(come)
        for order in self.planner.oldest_orders(len(come)):
            self.planner.step(WorkerReady(order, now_ms), 0)
        commands = self.planner.step(PeriodEnded(rolled(self._periods, arrivals), len(self._ready), 0), 0)
        events = [command.event for command in commands if isinstance(command, RecordEvent)]
        self.events += events
        decided = next(event for event in events if isinstance(event, ScaleDecided))
        drained = max(0, decided.ready - decided.target)
        self._follow(min(decided.ready - drained + self.planner.coming, SETTINGS.max), now_ms)
        self.looks.append(Look(decided.target, tuple(sorted(self._ready)), tuple(sorted(self._starting))))

    def _follow(self, workers: int, now_ms: int) -> None:
        while len(self._ready) + len(self._starting) > workers:
            unready = [*self._starting] if self._unready_goes else []
            number = max(unready or [*self._ready, *self._starting])
            self._ready.discard(number)
            self._starting.pop(number, None)
        while len(self._ready) + len(self._starting) < workers:
            taken = self._ready | self._starting.keys()
            number = next(number for number in range(workers) if number not in taken)
            self._starting[number] = now_ms + SETTINGS.startup_s * 1000


@pytest.mark.parametrize("unready_goes", [True, False])
@pytest.mark.parametrize("dying", [1, 3])
def test_a_worker_that_always_dies_is_replaced_for_good(dying: int, unready_goes: bool) -> None:
    """It is reported once. Its replacement is no worker too many when it serves, and the start-up time that is learned
    is that of the replacement. When the demand falls, the fleet shrinks within the window and a minute, whichever of
    both workers the hand ends."""
    fleet = NumberedFleet(dying, unready_goes=unready_goes)
    fleet.periods(CALM)
    replaced = fleet.periods(BUSY)[5 * PER_MINUTE :]
    assert {len(look.ready) for look in replaced} == {look.target for look in replaced} == {4}
    assert len({look.ready for look in replaced}) == 1, "none of them is drained"
    assert [event.reason for event in fleet.events if isinstance(event, ScaleFailed)] == ["it does not come"]
    assert fleet.planner.fold.capacity is not None
    assert fleet.planner.fold.capacity.startup_ms <= (SETTINGS.startup_s + 2 * PERIOD_S) * 1000

    calm = fleet.periods(CALM)
    assert {(look.target, look.ready) for look in calm[(SETTINGS.down_window_s + 60) // PERIOD_S :]} == {(1, (0,))}
    assert all(len(look.ready) >= look.target for look in calm)


def test_a_slow_worker_takes_its_own_order() -> None:
    """One that is overdue and comes while no other start is under way."""
    fleet = NumberedFleet(1, unready_goes=True)
    fleet.periods(BUSY[: 6 * PER_MINUTE])
    before = fleet.planner.coming
    (overdue,) = fleet.planner.oldest_orders(before)
    fleet.planner.step(WorkerReady(overdue, START_MS + 10_000_000), 0)

    assert (before, fleet.planner.coming) == (1, 0)
