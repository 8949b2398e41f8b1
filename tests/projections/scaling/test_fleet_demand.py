"""The demand of several models, counted from one stream."""

from __future__ import annotations

from msgspec.structs import replace

from core.events import RequestQueued, RequestTurnedAway
from core.events.scale import NO_MODEL, DemandCell
from projections.scaling.fleet_demand import FleetDemand
from projections.scaling.request_demand import OPEN_MAX, RequestDemand
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import end

CURSOR = {"routing": (1, 7)}


def queued(request: str, model: str) -> RequestQueued:
    return RequestQueued(
        request=request, model=model, priority=0, tenant="", prompt_tokens=100, why="full", depth=0, now_ms=0
    )


def test_events_count_for_the_model_of_their_request() -> None:
    """Also those that name none: an attempt that is lost, and the end. Requests of other models count nowhere."""
    fold = FleetDemand({"a": ScaleSettings(), "b": ScaleSettings(ttft_ms=100)})
    for request, model in (("1", "a"), ("2", "b"), ("3", "other"), ("4", "b")):
        fold.apply(queued(request, model))
        fold.apply(replace(routed(request, worker_id(1)), model=model))
    for request in ("1", "2", "3"):
        fold.apply(end(request, "worker_lost"))
        fold.apply(end(request))
    fold.apply(end("unknown"))
    fold.apply(RequestTurnedAway(request="5", model="b", reason="full", status=429, waited_ms=-1))
    a, b = (fold.roll(model, 5_000, 5, CURSOR) for model in "ab")

    assert (a.model, a.arrivals, a.ended, a.attained, a.running) == ("a", 1, 1, 1, 0)
    assert (b.model, b.arrivals, b.ended, b.attained, b.running, b.refused) == ("b", 3, 2, 0, 1, 1)
    assert a.cells == b.cells == (DemandCell(1, 60, 42, 100),)


def test_without_a_name_all_models_are_one_demand() -> None:
    """As a planner of one model has it: the period names none."""
    fold, alone = FleetDemand({NO_MODEL: ScaleSettings()}), RequestDemand(ScaleSettings())
    for event in (queued("1", "a"), replace(routed("2", worker_id(1)), model="b"), end("2"), end("unknown")):
        fold.apply(event)
        alone.apply(event)
    assert fold.roll(NO_MODEL, 5_000, 5, CURSOR) == alone.roll(5_000, 5, CURSOR)


def test_requests_that_are_followed_are_bounded() -> None:
    """The oldest one makes room, and its end counts for no model."""
    fold = FleetDemand({"a": ScaleSettings()})
    for number in range(OPEN_MAX + 1):
        fold.apply(queued(str(number), "a"))
    fold.apply(end("0"))
    fold.apply(end("1"))
    assert fold.roll("a", 5_000, 5, CURSOR).ended == 1
    assert not fold.counts("b")
    fold.use("b", ScaleSettings())
    assert fold.counts("b")
