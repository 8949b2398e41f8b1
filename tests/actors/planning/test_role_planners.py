"""Planners of both roles of one model: their events share a demand and a message, and each is folded by its role."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from actors.planning.fleet_planner import FleetPeriodEnded, FleetPlanner
from actors.planning.planner import (
    LEARN_EVERY_MS,
    TRANSFER_PERIODS,
    DrainWorker,
    PeriodEnded,
    Planner,
    RecordEvent,
    StartWorker,
)
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    NO_MODEL,
    CapacityLearned,
    DemandRolled,
    PrefillDemand,
    ScaleDecided,
    ScaleEvent,
    ScaleSettingsChanged,
    fleet_key,
    fleet_of,
    model_and_role,
    role_of,
)
from projections.scaling.fleet_fold import FleetFold
from projections.scaling.scale_settings import ScaleSettings, prefill_settings
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, cell, rolled

SETTINGS = ScaleSettings(max=6, devices_max=6, down_window_s=20, startup_s=5)
OWN = prefill_settings(SETTINGS, {"max": 4, "startup_s": 10})
KEYS = DECODE_KEY, PREFILL_KEY = fleet_key(NO_MODEL, DECODE), fleet_key(NO_MODEL, PREFILL)


def planners(fold: FleetFold | None = None) -> FleetPlanner:
    """Of both roles, behind the fold of the stream so far."""
    fold = fold or FleetFold()
    both = [
        Planner(SETTINGS, CAPACITY, fold.of(DECODE_KEY)),
        Planner(OWN, replace(CAPACITY, role=PREFILL), fold.of(PREFILL_KEY), role=PREFILL),
    ]
    return FleetPlanner(both, dict.fromkeys(KEYS, 1))


def period(number: int, arrivals: int, ready: tuple[int, int] = (1, 1), transfer_ms: int = 40) -> FleetPeriodEnded:
    """Arrivals with long prompts and short answers."""
    prompts = (cell(arrivals, uncached=8_000, output=1, prompt=8_000),) if arrivals else ()
    steps = (cell(arrivals, uncached=0, output=20, prompt=8_000),) if arrivals else ()
    demand = PrefillDemand(0, arrivals, arrivals * transfer_ms, prompts)
    found = replace(rolled(number, arrivals, steps), prefill_demand=demand)
    return FleetPeriodEnded({key: PeriodEnded(found, count, 0) for key, count in zip(KEYS, ready, strict=True)})


def events_of(planner: FleetPlanner, ended: FleetPeriodEnded) -> list[ScaleEvent]:
    """The events of the message of that period."""
    return [command.event for _, command in planner.step(ended, 0) if isinstance(command, RecordEvent)]


def test_a_fleet_has_a_key_for_each_role() -> None:
    """That of decode workers is the model alone, as in earlier streams."""
    keys = [fleet_key(model, role) for model in ("", "m") for role in (DECODE, PREFILL)]

    assert [model_and_role(key) for key in keys] == [("", DECODE), ("", PREFILL), ("m", DECODE), ("m", PREFILL)]
    assert (keys[0], keys[2], len(set(keys))) == ("", "m", 4)


def test_a_period_is_recorded_once_and_folded_for_both() -> None:
    """The events of decode workers name no role. Settings and speed of each stand before all decisions."""
    planner = planners()
    events = events_of(planner, period(1, 40))

    assert [type(event) for event in events if role_of(event) == PREFILL and not isinstance(event, ScaleDecided)][
        :2
    ] == [
        ScaleSettingsChanged,
        CapacityLearned,
    ]
    assert sum(isinstance(event, DemandRolled) for event in events) == 1
    kinds = [isinstance(event, DemandRolled | ScaleSettingsChanged | CapacityLearned) for event in events]
    assert kinds.index(False) == len([kind for kind in kinds if kind])
    fold = FleetFold()
    for event in events:
        fold.apply(event)
    assert fold.fleets == list(KEYS)
    for key in KEYS:
        mine = planner.planners[key].fold
        last = fold.of(key).last
        assert last == mine.last
        assert last is not None
        assert fleet_of(last) == key
        assert (fold.of(key).periods, fold.of(key).settings) == (1, mine.settings)


def test_long_prompts_order_prefill_workers_within_the_devices() -> None:
    """Eight prompts of 176 ms a second are 1.4 workers' work; twenty of them more than `max` of prefill workers."""
    planner = planners()
    ready = dict.fromkeys(KEYS, 1)
    targets: list[tuple[int, int]] = []
    for number in range(1, 30):
        commands = planner.step(period(number, 100 if number > 10 else 10, (ready[DECODE_KEY], ready[PREFILL_KEY])), 0)
        for key, command in commands:
            ready[key] += isinstance(command, StartWorker) - isinstance(command, DrainWorker)
        decided = {key: planner.planners[key].fold.last for key in KEYS}
        targets.append(tuple(it.target for it in decided.values() if it is not None))  # type: ignore[arg-type]

    assert targets[5] == (1, 1)
    assert targets[-1] == (1, 4)
    assert all(sum(each) <= SETTINGS.devices_max for each in targets)


def test_a_successor_goes_on_with_both() -> None:
    """It states nothing again that the stream has."""
    fold, planner = FleetFold(), planners()
    for number in range(1, 5):
        for event in events_of(planner, period(number, 40)):
            fold.apply(event)
    first = events_of(planner, period(5, 40))
    later = events_of(planners(fold), period(5, 40))

    decided = [[event for event in each if isinstance(event, ScaleDecided)] for each in (first, later)]
    assert [each.target for each in decided[0]] == [each.target for each in decided[1]]
    assert not any(isinstance(event, ScaleSettingsChanged) for event in later)


def test_the_median_transfer_is_learned_and_old_ones_fade() -> None:
    """A burst in fewer than half of the periods changes nothing, however many prompts waited for slots of decode
    workers, and however long. One that is known stays where none come."""
    planner, number = planners(), 0
    fold = planner.planners[PREFILL_KEY].fold

    def learned(*periods: tuple[int, int]) -> int | UnsetType:
        """The one known behind periods of so many requests, with the time in ms, and the look that follows them."""
        nonlocal number
        per_look = LEARN_EVERY_MS // (PERIOD_S * 1000)
        for count, transfer_ms in (*periods, *((0, 0),) * per_look):
            number += 1
            planner.step(period(number, count, transfer_ms=transfer_ms), 0)
        assert fold.capacity is not None
        return fold.capacity.transfer_us

    assert learned() is UNSET
    assert learned((10, 40), (20, 1_000)) == 40_000
    assert learned((1, 1_000)) == 1_000_000
    assert learned(*((1, 100),) * (TRANSFER_PERIODS // 2)) == 100_000
    assert learned(*((2, 200),) * (TRANSFER_PERIODS // 2)) == 100_000
    assert learned((1, 200)) == 200_000
    quiet = planners().planners[PREFILL_KEY]
    quiet.fold.capacity = replace(CAPACITY, role=PREFILL, transfer_us=7, startup_ms=1)
    quiet._took_ms.append(2)
    found = quiet._learned(None, 1_000_000_000)
    assert found is not None
    assert (found.transfer_us, found.startup_ms, found.role) == (7, 2, PREFILL)


def test_decode_workers_alone_have_no_part_of_prefill_workers() -> None:
    """Their events are as before."""
    planner = FleetPlanner([Planner(SETTINGS, CAPACITY)], {NO_MODEL: 1})
    ended = FleetPeriodEnded({NO_MODEL: PeriodEnded(rolled(1, 10), 1, 0)})

    events = events_of(planner, ended)

    assert all(getattr(event, "role", UNSET) is UNSET for event in events)
    assert {event.transfer_us for event in events if isinstance(event, CapacityLearned)} == {UNSET}
