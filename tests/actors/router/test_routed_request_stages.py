"""The stages of a request as the scheduler records them: each has its place, and all attempts add up."""

from __future__ import annotations

from actors.router.request_scheduler import AttemptBroke, OutputArrived
from actors.router.routed_request import RoutedRequest
from actors.transport.worker_connection import WorkerDisconnected
from core.events import RequestFinished
from core.events.request_stages import UNREPORTED, RequestStages
from core.generation import IntakeTimes, Output, PrefillReport
from core.settings import RoutingSettings
from tests.actors.router.scheduling import Scheduling

INTAKE = IntakeTimes(loop_us=1_000, body_us=2_000, prepare_us=40_000)
MS = 1000


def advance(it: Scheduling, by_ms: int) -> None:
    it.ticks(by_ms * MS)


def first(it: Scheduling, of: RoutedRequest, **values: object) -> None:
    output = Output(tokens=(1,), cached_tokens=0, **values)  # type: ignore[arg-type]
    it.feed(OutputArrived(of.id, of.attempt, output, it.agenda.now_us))


def stages(it: Scheduling) -> list[RequestStages]:
    events = [event for event in it.published(RequestFinished) if isinstance(event, RequestFinished)]
    return [found for event in events if (found := RequestStages.of(event.stages)) is not None]


def test_each_stage_has_its_time() -> None:
    """A request that waits for a slot, and whose worker reports its engine's times."""
    it = Scheduling()
    before = it.arrive("before")
    request = it.arrive("r1", intake=INTAKE)
    advance(it, 300)
    it.output(before, 1, finish="stop")
    it.ticks()
    advance(it, 90)
    first(it, request, engine_us=(50_000, 30_000))
    advance(it, 200)
    it.output(request, 2, finish="stop")
    assert stages(it)[1] == RequestStages(
        loop=10, body=20, prepare=400, queued=3000, link=100, behind=500, prefill=300, decode=2000
    )
    (ended,) = [event for event in it.published(RequestFinished) if event.request == "r1"]  # type: ignore[union-attr]
    assert isinstance(ended, RequestFinished)
    assert stages(it)[1].total == 10 * ended.duration_ms + 430  # the record's durations begin at the router


def test_a_worker_of_an_earlier_version_reports_none() -> None:
    """Then the prefill is all from sending on; so is what the engine cannot have had."""
    it = Scheduling()
    request = it.arrive("r1")
    advance(it, 90)
    first(it, request)
    it.output(request, 2, finish="stop")
    assert stages(it) == [RequestStages(behind=UNREPORTED, prefill=900)]


def test_reported_times_never_exceed_those_of_the_replica() -> None:
    """A worker's clock may run faster: what was seen here is what is divided."""
    it = Scheduling()
    request = it.arrive("r1")
    advance(it, 90)
    first(it, request, engine_us=(80_000, 70_000))
    it.output(request, 2, finish="stop")
    assert stages(it) == [RequestStages(behind=200, prefill=700)]


def test_a_prompt_that_another_worker_computed() -> None:
    """The wait for it is a stage of its own."""
    it = Scheduling()
    request = it.arrive("r1")
    advance(it, 500)
    report = PrefillReport(
        remote=True, reason="long", uncached_tokens=20, queued=0, workers=1, min_tokens=10, queue_max=4, job="j",
        outcome="pulled", wait_ms=400, pull_ms=20,
    )  # fmt: skip
    first(it, request, engine_us=(10_000, 30_000), prefill=report)
    it.output(request, 2, finish="stop")
    assert stages(it) == [RequestStages(link=400, remote=4200, behind=100, prefill=300)]


def test_attempts_add_up() -> None:
    """The second begins where the first broke off; the front end's times count once."""
    it = Scheduling(RoutingSettings(policy="kv", active_max=4), workers=2)
    request = it.arrive("r1", intake=INTAKE)
    advance(it, 50)
    first(it, request, engine_us=(10_000, 30_000))
    advance(it, 70)
    it.feed(AttemptBroke(request.id, request.attempt, WorkerDisconnected("gone")))
    it.ticks()
    advance(it, 40)
    first(it, request, engine_us=(0, 40_000))
    it.output(request, 3, finish="stop")
    one, two = stages(it)
    assert one == RequestStages(loop=10, body=20, prepare=400, link=100, behind=100, prefill=300, decode=700)
    assert two == RequestStages(prefill=400)
    assert one.total + two.total == 430 + 1600


def test_a_held_request() -> None:
    """From when it was held until it was sent."""
    it = Scheduling(RoutingSettings(policy="time", hold_max_ms=1000, active_max=8))
    busy = it.arrive("busy", tokens=4000)
    held = it.arrive("held", tokens=4000)
    it.ticks()
    advance(it, 120)
    first(it, busy)
    it.ticks(2000 * MS)
    assert held.routed is not None
    hold_us = held.sent_us - held.arrived_us
    it.output(held, 2, finish="stop")
    assert hold_us > 100 * MS
    assert stages(it)[-1].held == hold_us // 100
    assert stages(it)[-1].route == 0
