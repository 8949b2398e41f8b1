"""The planner of several models: their events in one message, and their devices divided."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from actors.planning.planner_service import OrderBounds, orders_max
from core.events.scale import DemandRolled, ScaleDecided, ScaleEvent, model_of
from projections.scaling.fleet_fold import FleetFold
from projections.scaling.scale_decision import BUDGET, FleetCounts
from replay.verify.scale_checks import RecordedScaleDecision, judge_scale, recorded_inputs
from tests.actors.planning.fleets_run import BUSY, BUSY_WORKERS, QUIET, SHARED, Fleets, two
from tests.projections.scaling.demands import CAPACITY


def remade(messages: list[list[ScaleEvent]]) -> list[bool]:
    """For each decision, whether it comes out the same."""
    fold, found = FleetFold(), []
    for events in messages:
        decisions = []
        for event in events:
            if isinstance(event, ScaleDecided):
                decisions.append(RecordedScaleDecision(event, recorded_inputs(fold.of(model_of(event)), event)))
            fold.apply(event)
        for it in decisions:
            beside = [other for other in decisions if other is not it]
            found.append(judge_scale(it.event, it.inputs, is_whole=True, beside=beside).is_equal(it.event))
    return found


def test_devices_move_to_the_demand() -> None:
    """To the one model, then to the other, and never more of them than there are. A fold of the events makes each
    decision again, and one with another target is found."""
    fleets, seen = two(a=SHARED, b=SHARED), []
    for busy, periods in (("a", 12), ("", 12), ("b", 24)):
        for _ in range(periods):
            found = fleets.period(**{model: BUSY if model == busy else QUIET for model in "ab"})
            seen.append({model: each.target for model, each in found.items()})
            assert sum(seen[-1].values()) <= SHARED.devices_max
    assert seen[11]["a"] >= BUSY_WORKERS
    assert seen[11]["b"] == 1
    assert seen[-1]["b"] >= BUSY_WORKERS
    assert seen[-1]["a"] == 1
    assert all(remade(fleets.messages))

    *before, last = fleets.messages
    wrong = [replace(each, target=each.target - 1) if isinstance(each, ScaleDecided) else each for each in last]
    assert remade([*before, wrong])[-2:] == [False, False]


def test_a_higher_priority_takes_at_once() -> None:
    """A fleet of a lower one gives workers at the same period, and keeps its least. It regrets nothing: when the higher
    one needs less, the lower one has its workers again."""
    fleets = two(a=replace(SHARED, priority=9), b=replace(SHARED, min=2))
    for _ in range(4):
        found = fleets.period(a=QUIET, b=BUSY)
    assert found["b"].target >= BUSY_WORKERS
    found = fleets.period(a=BUSY, b=BUSY)
    assert (found["a"].target, found["b"].target, found["b"].bound) == (4, 2, BUDGET)
    assert found["b"].sought is not UNSET
    assert found["b"].sought > 2
    for _ in range(12):
        found = fleets.period(a=QUIET, b=BUSY)
    assert found["b"].target >= BUSY_WORKERS
    again = fleets.planner.planners["b"].fold.inputs(found["b"].at_ms, FleetCounts(5), found["b"].forecast)
    assert again.regretted == 0
    assert all(remade(fleets.messages))


def test_a_model_without_a_speed_keeps_its_devices() -> None:
    """It decides nothing, and others share the rest."""
    fleets = Fleets({"a": CAPACITY, "b": None}, a=SHARED, b=SHARED)
    fleets.ready["b"] = 3
    for _ in range(3):
        found = fleets.period(a=BUSY, b=BUSY)
    assert found.keys() == {"a"}
    assert (found["a"].budget, found["a"].target) == (3, 3)
    assert all(remade(fleets.messages))


def test_without_a_bound_models_are_decided_alone() -> None:
    """No event has a budget. All events of a message name their model, demand first and decisions last."""
    free = replace(SHARED, devices_max=0)
    fleets = two(a=free, b=free)
    for _ in range(3):
        found = fleets.period(a=BUSY, b=BUSY)
    assert all(each.budget is UNSET and each.sought is UNSET for each in found.values())
    assert found["a"] == replace(found["b"], model="a")
    events = fleets.messages[-1]
    assert {model_of(event) for event in events} == {"a", "b"}
    places = [at for at, event in enumerate(events) if isinstance(event, DemandRolled)]
    assert max(places) < min(at for at, event in enumerate(events) if isinstance(event, ScaleDecided))


def test_overdue_workers_have_the_devices_that_no_target_takes() -> None:
    """In the order of the decisions; without a budget each model has its own limit."""
    fleets = two(a=SHARED, b=SHARED)
    found = fleets.period(a=QUIET, b=QUIET)
    late = {model: replace(each, target=2, overdue=3) for model, each in found.items()}
    bounds = {model: OrderBounds(most=8, devices=1) for model in late}
    assert orders_max(late, bounds) == {"a": 4, "b": 2}
    assert orders_max(late, bounds | {"a": OrderBounds(most=3, devices=1)}) == {"a": 3, "b": 3}
    alone = {model: replace(each, budget=UNSET) for model, each in late.items()}
    assert orders_max(alone, bounds) == {"a": 8, "b": 8}
