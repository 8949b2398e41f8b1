"""Planners beside a fleet: one leads, no order precedes its decision, and a successor goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.planning import planner as planner_module
from actors.planning import planner_service, quiet_periods
from actors.planning.fleet_target import ACKNOWLEDGED_KEY, TARGET_KEY, FleetAcknowledgement, FleetTarget
from actors.planning.forecast_process import ForecastProcess
from actors.planning.judge_process import JUDGED
from actors.planning.model_fleet import PlannedModel
from actors.planning.planner_service import CLAIM, PlannerOptions, PlannerService
from actors.planning.planner_settings import PLANNER_SETTINGS_KEY, given_for, merged, parsed, with_own_settings
from core.clock import Clock, SystemClock
from core.codec import decode_message
from core.errors import CallerError, PeerError, Unavailable
from core.events.request_stages import RequestStages
from core.events.routing import PROGRESS_VERSION
from core.events.scale import (
    CapacityLearned,
    DemandRolled,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    ScaleFailed,
    ScaleJudgement,
    ScaleSettingsChanged,
    WorkerStarting,
    model_of,
)
from core.ids import StreamName, StreamSeq
from core.subjects import SCALE
from projections.scaling import judge_plan
from projections.scaling.forecast import ForeseenRates, RateHistory
from projections.scaling.scale_settings import ARIMA, ON, SEASONAL, ScaleSettings
from projections.scaling.speed_model import SAMPLES_MIN
from streams.log import StreamState
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog, arrival
from tests.fixtures.eventually import eventually
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import CAPACITY, end

JUDGE = """
import json, sys
for line in sys.stdin:
    plan = json.loads(line)
    answer = {key: plan[key] for key in ("asked_ms", "rate_m")}
    answer |= {"workers": [[run[0], 9900, 0] for run in plan["runs"]], "digest": "d", "absent": "", "version": 1}
    print(json.dumps(answer), flush=True)
"""
"""Says of each number of workers that it attains 99 %."""
LEADS_IN_VAIN = 2
SETTINGS = ScaleSettings(min=2, max=4, period_s=1, startup_s=5)
REGISTERED = {"model": "m", "address": "h:1", "engine": "e", "block_size": 16, "context_max": 4096, "slots": 8}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims are asked for often."""
    monkeypatch.setattr(planner_service, "STAND_BY_S", 0.05)
    monkeypatch.setattr(planner_service, "CLAIM_EVERY_S", 0.05)
    monkeypatch.setattr(planner_service, "SETTLE_S", 0.05)


def planned(
    model: str = "m",
    settings: ScaleSettings = SETTINGS,
    group: str = "decode",
    profile: CapacityLearned | None = CAPACITY,
) -> PlannedModel:
    return PlannedModel(group=group, model=model, settings=settings, profile=profile, pass_tokens=2048)


class Site:
    """A log and a registry for planners."""

    def __init__(self, log: PlannedLog) -> None:
        self.log = log
        self.store = MemoryRegistryStore()
        self.worker_put("w1")

    def worker_put(self, worker: str, **changes: object) -> None:
        self.store.put(f"workers/{worker}", orjson.dumps({**REGISTERED, **changes}))

    @asynccontextmanager
    async def planner(
        self,
        name: str,
        *,
        acts: bool = True,
        profiled: bool = True,
        clock: Clock | None = None,
        models: tuple[PlannedModel, ...] = (),
    ) -> AsyncIterator[PlannerService]:
        """A planner that runs; it is gone at the end as if killed: its claim stays."""
        options = PlannerOptions(
            namespace=NAMESPACE,
            name=name,
            acts=acts,
            models=models or (planned(profile=CAPACITY if profiled else None),),
            judge=(sys.executable, "-c", JUDGE),
        )
        service = PlannerService(options, self.log, MemoryRegistry(self.store), clock or SystemClock(), self.log.key)
        running = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            running.cancel()
            await asyncio.wait((running,))

    @property
    def target(self) -> FleetTarget | None:
        found = self.store.find(TARGET_KEY)
        return None if found is None or found.value is None else FleetTarget.parse(found.value)

    async def events(self) -> list[tuple[int, ScaleEvent]]:
        """All of the scale stream, each with its sequence."""
        return [
            (record.seq, event)  # type: ignore[misc]
            async for record in self.log.read(SCALE, StreamSeq(1))
            for event in decode_message(record.payload).events
        ]


@pytest.fixture
async def site() -> Site:
    return Site(await PlannedLog().made())


async def next_decision(service: PlannerService) -> None:
    known = service.fleets[0].last
    await eventually(lambda: service.fleets[0].last is not known, "another decision")


def decided(service: PlannerService) -> Callable[[], bool]:
    return lambda: service.fleets[0].last is not None


async def test_a_decision_stands_in_the_log_before_its_order(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order names it; with one worker ready of two that must be, one is ordered."""
    put, stood = MemoryRegistry.put, []

    async def watched(registry: MemoryRegistry, key: str, value: bytes) -> int:
        stood.append((FleetTarget.parse(value), (await site.log.state(SCALE)).last_seq))
        return await put(registry, key, value)

    monkeypatch.setattr(MemoryRegistry, "put", watched)
    async with site.planner("a") as service:
        await eventually(lambda: site.target is not None, "an order")
        claim = site.store.find(CLAIM)
        assert claim is not None
        assert site.target == FleetTarget(claim.revision, stood[0][0].decision, "decode", 2)
        assert stood[0][0].decision <= stood[0][1]
        event = next(
            event for seq, event in await site.events() if seq == stood[0][0].decision and type(event) is ScaleDecided
        )
        assert (event.ready, event.target) == (1, 2)
        state = orjson.loads(orjson.dumps(service.describe()))
        assert (state["ordered"], state["decision"]["target"]) == (2, 2)

        site.worker_put("w2")
        await eventually(lambda: service.describe()["starting"] == 0, "the worker that was ordered")
    assert len(stood) == 1, "an order is not repeated"


async def test_one_leads_and_another_goes_on(site: Site) -> None:
    """The successor repeats no settings, counts on from the cursor, and its orders have a higher fence."""
    async with site.planner("a") as first:
        await eventually(lambda: site.target is not None, "the first order")
        before = site.target
        async with site.planner("b") as second:
            await asyncio.sleep(0.3)
            assert (first.fence is None, second.fence is None) == (False, True)
            site.store.expire(CLAIM)
            await eventually(decided(second), "a decision of the second")
            await eventually(lambda: first.fence is None, "the end of the first one's lead")
            await eventually(lambda: site.target is not None and site.target != before, "an order of the second")
            assert site.target is not None
            assert before is not None
            assert site.target.fence > before.fence
            assert site.target.workers == before.workers, "what is on its way is not ordered twice"
    events = [event for _, event in await site.events()]
    assert sum(isinstance(event, ScaleSettingsChanged) for event in events) == 1
    assert sum(isinstance(event, WorkerStarting) for event in events) == 1, "the order of the first planner"
    since = [event.since for event in events if isinstance(event, DemandRolled) and isinstance(event.since, int)]
    assert len(since) == 2
    assert max(event.periods for event in events if isinstance(event, ScaleDecided)) == sum(
        isinstance(event, DemandRolled) for event in events
    )


async def test_advice_orders_nothing(site: Site) -> None:
    """It decides all the same."""
    async with site.planner("a", acts=False) as service:
        await eventually(decided(service), "a decision")
        assert service.fleets[0].last is not None
        assert service.fleets[0].last.target == 2
        known = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not known, "another decision")
        assert service.fleets[0].last.starting == 0
    assert site.target is None
    assert not any(isinstance(event, WorkerStarting | ScaleApplied) for _, event in await site.events())


async def test_answers_of_a_hand_become_events(site: Site) -> None:
    """Each once, of the present lead only, and no later than the next period. Decisions go on in between."""
    async with site.planner("a") as service:
        await eventually(lambda: site.target is not None, "an order")
        target = site.target
        assert target is not None
        site.store.put(ACKNOWLEDGED_KEY, b"garbage")
        for fence, decision, workers, error in (
            (target.fence - 1, target.decision, 4, "of another planner's target"),
            (target.fence, target.decision + 1000, 4, "of a target that was never given"),
            (target.fence, target.decision, 1, "no room"),
        ):
            site.store.put(ACKNOWLEDGED_KEY, FleetAcknowledgement(fence, decision, workers, error).encode())
            await next_decision(service)
        site.store.put(ACKNOWLEDGED_KEY, FleetAcknowledgement(target.fence, target.decision, 2).encode())
        await next_decision(service)
        await next_decision(service)
    events = [event for _, event in await site.events()]
    answers = [event for event in events if isinstance(event, ScaleApplied | ScaleFailed)]
    assert [replace(each, at_ms=0) for each in answers] == [
        ScaleFailed(at_ms=0, reason="no room", decision=target.decision),
        ScaleApplied(at_ms=0, target=2, started=1, drained=0, decision=target.decision),
    ]


async def test_an_order_stays_within_the_limits(site: Site) -> None:
    """Workers that are overdue are in it only as far as the limit allows: each may hold its devices still."""
    async with site.planner("a") as service:
        await eventually(lambda: service.fleets[0].machine is not None, "its lead")
        machine = service.fleets[0].machine
        assert machine is not None
        machine._pending |= dict.fromkeys(range(1, 8), 0)
        machine._overdue |= dict.fromkeys(range(1, 8))
        await eventually(lambda: site.target is not None, "an order")
        assert site.target is not None
        assert site.target.workers == SETTINGS.max
        assert service.describe()["starting"] > SETTINGS.max


async def test_limits_change_while_it_runs(site: Site) -> None:
    """From the next decision on, as an event. One that the file does not allow is refused, and the last ones stay."""
    async with site.planner("a") as service:
        await eventually(lambda: site.target is not None, "an order")
        site.store.put(PLANNER_SETTINGS_KEY, b'{"min": 3, "ttft_ms": 700}')
        await eventually(lambda: site.target is not None and site.target.workers == 3, "an order by the new limits")
        site.store.put(PLANNER_SETTINGS_KEY, b'{"max": 5}')
        await eventually(lambda: bool(service.fleets[0].settings.refused), "the refusal")
        assert "allows 4 at most" in service.describe()["settings_refused"]
        assert service.fleets[0].settings.current.ttft_ms == 700
        site.store.delete(PLANNER_SETTINGS_KEY)
        await eventually(lambda: service.fleets[0].settings.current == SETTINGS, "the file's settings")
    events = [event for _, event in await site.events()]
    revisions = [(event.revision, event.settings["min"]) for event in events if isinstance(event, ScaleSettingsChanged)]
    assert revisions[:2] == [(1, 2), (2, 3)]
    place = next(
        at for at, event in enumerate(events) if isinstance(event, ScaleSettingsChanged) and event.revision == 2
    )
    assert isinstance(events[place - 1], DemandRolled)
    assert next(event for event in events[place:] if isinstance(event, ScaleDecided)).revision == 2


async def test_advice_while_it_runs_stops_orders(site: Site) -> None:
    """It goes on deciding."""
    async with site.planner("a") as service:
        await eventually(lambda: site.target is not None, "an order")
        site.store.put(PLANNER_SETTINGS_KEY, b'{"mode": "advise", "min": 4}')
        fleet = service.fleets[0]
        await eventually(lambda: fleet.last is not None and fleet.last.target == 4, "a decision by the new limits")
        assert site.target is not None
        assert site.target.workers == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mode": "off"}, "neither advise nor act"),
        ({"min": 0}, "planner.min: at least 1"),
        ({"max": 5}, "allows 4 at most"),
        ({"max": 1}, "planner.min"),
        ({"itl": 5}, "planner.itl: no such setting"),
        ({"ttft_ms": -1}, "planner.ttft_ms"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(given: dict[str, Any], told: str) -> None:
    """So is an order where the file says `advise`."""
    with pytest.raises(CallerError, match=told):
        merged(SETTINGS, True, given)
    with pytest.raises(CallerError, match="nobody would carry orders out"):
        merged(SETTINGS, False, {"mode": "act"})
    with pytest.raises(CallerError, match="no JSON object"):
        parsed(b"[]")


async def test_without_a_known_speed_demand_alone_is_counted(site: Site) -> None:
    """Nothing is decided, and nothing ordered."""
    async with site.planner("a", profiled=False) as service:
        await eventually(lambda: service.fleets[0].rolled is not None, "a period")
    assert service.fleets[0].last is None
    assert site.target is None


async def test_a_fleet_at_zero_keeps_the_speed_that_it_had(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a worker no size of an engine's cache is known, and a worker without one could serve nothing."""
    monkeypatch.setattr(planner_module, "LEARN_EVERY_MS", 0)
    stages = RequestStages(prefill=2_000, decode=3_000)

    async def serve(first: int) -> None:
        for number in range(first, first + SAMPLES_MIN):
            asked = routed(f"r{number}", worker_id(1), model="m")
            await site.log.write(asked, replace(end(f"r{number}", stages=stages), v=PROGRESS_VERSION))

    async with site.planner("a", profiled=False) as service:
        site.worker_put("w1", capacity_blocks=1_000)
        await eventually(lambda: service.fleets[0].rolled is not None, "a period")
        await serve(0)
        await eventually(decided(service), "a decision")
        site.store.delete("workers/w1")
        await eventually(lambda: service.fleets[0].last is not None and not service.fleets[0].last.ready, "no worker")
        await serve(SAMPLES_MIN)
        await next_decision(service)
        await next_decision(service)
    learned = [event for _, event in await site.events() if isinstance(event, CapacityLearned)]
    assert {(each.room_tokens, each.slots) for each in learned} == {(16_000, 8)}


async def test_quiet_periods_of_a_fleet_at_zero_are_recorded_together(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request ends the rest in its own period."""
    monkeypatch.setattr(quiet_periods, "QUIET_S", 1_000)
    at_zero = planned(settings=replace(SETTINGS, min=0, zero_after_s=1))
    site.store.delete("workers/w1")
    async with site.planner("a", models=(at_zero,)) as service:
        fleet = service.fleets[0]
        await eventually(lambda: fleet.last is not None and fleet.last.target == 0, "a fleet at zero")
        last = fleet.last
        await asyncio.sleep(2.5)
        assert fleet.last is last
        await site.log.write(arrival("r1")[0])
        await next_decision(service)
        assert (fleet.last.bound, fleet.last.target) == ("from_zero", 1)  # type: ignore[union-attr]
    periods = [event for _, event in await site.events() if isinstance(event, DemandRolled)]
    assert periods[-1].arrivals == periods[-1].waiting == 1
    assert sum(each.period_s for each in periods[-3:]) >= 3


async def test_workers_of_others_do_not_count(site: Site) -> None:
    """Those of another model, and those that compute prompts for others."""
    site.worker_put("other", model="n")
    site.worker_put("prefill", role="prefill")
    async with site.planner("a") as service:
        await eventually(decided(service), "a decision")
        assert service.fleets[0].last is not None
        assert service.fleets[0].last.ready == 1


async def lose_log(site: Site, service: PlannerService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a decision the log is away until the planner has met it, and has given up its lead; then it is back."""

    async def refuses(stream: StreamName, *_: object) -> StreamSeq:
        raise PeerError(f"stream {stream} is gone")

    await eventually(decided(service), "a decision")
    with monkeypatch.context() as away:
        away.setattr(site.log, "append", refuses)
        await eventually(lambda: "is gone" in service.fault, "the fault")
        assert service.fence is None


async def test_a_log_that_is_away_ends_no_planner(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead is given up and taken again; the fault is told meanwhile."""
    async with site.planner("a") as service:
        await lose_log(site, service, monkeypatch)
        known = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not known, "a decision after it")
        assert not service.fault


async def test_what_came_while_the_log_was_away_is_no_burst(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Front ends send what they kept a moment after the log is back: it counts in the time that it came in."""
    monkeypatch.setattr(planner_service, "SETTLE_S", 2)
    async with site.planner("a") as service:
        await lose_log(site, service, monkeypatch)
        known = len([event for _, event in await site.events() if isinstance(event, DemandRolled)])
        await asyncio.sleep(1.5)
        await site.log.write(*(event for number in range(50) for event in arrival(f"late-{number}")))
        await next_decision(service)

    periods = [event for _, event in await site.events() if isinstance(event, DemandRolled)][known:]
    assert periods[0].arrivals == 50
    assert periods[0].period_s >= 3


@pytest.mark.parametrize("method", ["state", "append"])
async def test_a_log_that_answers_late_makes_no_burst(site: Site, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A call may wait until the log is back, and meet no error: what came meanwhile counts in its time, too."""
    for bound, value in (("SETTLE_S", 2), ("STALLED_S", 1), ("POLL_EVERY_S", 0.05)):
        monkeypatch.setattr(planner_service, bound, value)
    call, is_back, is_asked = getattr(site.log, method), asyncio.Event(), asyncio.Event()

    async def waits(*parameters: Any, **named: Any) -> Any:
        is_asked.set()
        await is_back.wait()
        return await call(*parameters, **named)

    async with site.planner("a") as service:
        await next_decision(service)
        monkeypatch.setattr(site.log, method, waits)
        await is_asked.wait()
        await asyncio.sleep(2.5)
        known = len([event for _, event in await site.events() if isinstance(event, DemandRolled)])
        is_back.set()
        await asyncio.sleep(1.5)
        await site.log.write(*(event for number in range(50) for event in arrival(f"late-{number}")))
        await next_decision(service)
        assert service.failed == 0

    periods = [event for _, event in await site.events() if isinstance(event, DemandRolled)][known:]
    late = next(each for each in periods if each.arrivals)
    assert late.arrivals == 50
    assert late.period_s >= 4


async def test_a_registry_that_is_away_ends_no_planner(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides again when that is back."""
    claim = MemoryRegistry.claim

    async def away(*_: object) -> int:
        raise Unavailable("the registry is away")

    async with site.planner("a") as service:
        await eventually(decided(service), "a decision")
        monkeypatch.setattr(MemoryRegistry, "claim", away)
        await eventually(lambda: "away" in service.fault, "the fault")
        monkeypatch.setattr(MemoryRegistry, "claim", claim)
        known = service.fleets[0].last
        await eventually(lambda: service.fleets[0].last is not known, "a decision after it")


class ClockAnHourOff(SystemClock):
    """The clock of a machine without NTP."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


async def test_a_clock_that_is_an_hour_off_counts_for_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the log is away at the planner's start: no period is rolled before the broker's time is known."""
    site.log.clock.now_ms = now_ms = SystemClock().wall_ms()
    state, left = site.log.state, LEADS_IN_VAIN + 1

    async def away_at_first(stream: StreamName) -> StreamState:
        nonlocal left
        if left:
            left -= 1
            raise Unavailable("the log is away")
        return await state(stream)

    monkeypatch.setattr(site.log, "state", away_at_first)
    async with site.planner("a", clock=ClockAnHourOff()) as service:
        await eventually(decided(service), "a decision")
        assert service.failed == LEADS_IN_VAIN
    rolled = [event for _, event in await site.events() if isinstance(event, DemandRolled)]
    assert rolled
    assert all(abs(event.at_ms - now_ms) < 60_000 and event.period_s < 60 for event in rolled)


async def test_a_planner_that_is_killed_before_its_order(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decision stands in the log, its target nowhere. The successor orders what is missing, once."""
    put, reached = MemoryRegistry.put, asyncio.Event()

    async def killed(*_: object) -> int:
        reached.set()
        return await asyncio.Future[int]()

    monkeypatch.setattr(MemoryRegistry, "put", killed)
    async with site.planner("a"):
        await reached.wait()
    assert site.target is None
    monkeypatch.setattr(MemoryRegistry, "put", put)
    site.store.expire(CLAIM)
    async with site.planner("b") as second:
        await eventually(lambda: site.target is not None, "an order")
        known = second.fleets[0].last
        await eventually(lambda: second.fleets[0].last is not known, "another decision")
        assert site.target is not None
        assert site.target.workers == 2
    orders = [event.start for _, event in await site.events() if isinstance(event, WorkerStarting)]
    assert orders == [1, 2], "that of the first planner was never given, and is not known to come"


def test_a_target_that_is_none_is_refused() -> None:
    """In a sentence."""
    for value in (b"[]", b"{", FleetTarget(1, 1, "decode", -1).encode(), FleetTarget(1, 1, "decode", 1 << 20).encode()):
        with pytest.raises(PeerError, match="no target"):
            FleetTarget.parse(value)


async def test_a_decision_has_the_newest_answer_of_a_library(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked each period for the horizon. Until it has answered, the seasonal forecast stands in."""
    asked: list[tuple[str, int]] = []

    def ask(_self: ForecastProcess, settings: ScaleSettings, _history: RateHistory, horizon_s: int) -> None:
        asked.append((settings.predictor, horizon_s))

    monkeypatch.setattr(ForecastProcess, "ask", ask)
    site.store.put(PLANNER_SETTINGS_KEY, orjson.dumps({"predictor": ARIMA}))
    async with site.planner("a", acts=False) as service:
        await eventually(decided(service), "a decision")
        assert service.fleets[0].last is not None
        assert service.fleets[0].last.forecast.predictor == SEASONAL
        minute = service.fleets[0].last.at_ms // 60_000
        service.fleets[0].forecasts.foreseen = ForeseenRates(ARIMA, minute, (7_000,) * 10)
        await next_decision(service)
        await next_decision(service)
        assert (service.fleets[0].last.forecast.predictor, service.fleets[0].last.forecast.rate_m) == (ARIMA, 7_000)
        assert service.describe()["forecasts"] == {"failures": 0, "fault": ""}
    assert set(asked) == {(ARIMA, SETTINGS.startup_s + SETTINGS.period_s)}
    assert len(asked) >= 2


TWO = (
    planned("m", replace(SETTINGS, min=1, devices_max=5)),
    planned("n", replace(SETTINGS, min=1, devices_max=5, priority=3), group="code"),
)


async def test_several_models_have_targets_of_their_own(site: Site) -> None:
    """Each at its own key, and each counts its own workers. Settings of one model leave the others as they are. A
    successor goes on, and knows both."""
    site.worker_put("n1", model="n")
    async with site.planner("a", models=TWO) as service:
        m, n = service.fleets
        await eventually(lambda: all(each.last is not None for each in (m, n)), "decisions on both")
        site.store.put(
            PLANNER_SETTINGS_KEY, b'{"ttft_ms": 700, "models": {"n": {"min": 4, "ttft_ms": 600}, "m": {"min": 2}}}'
        )
        await eventually(lambda: m.last is not None and m.last.revision == 2, "a decision by the new limits")
        await eventually(lambda: n.target is not None and n.target.workers == 4, "an order of the one")
        assert (m.settings.current.ttft_ms, n.settings.current.ttft_ms) == (700, 600)
        assert m.target is not None
        assert (m.target.group, m.target.workers, n.target and n.target.group) == ("decode", 2, "code")
        assert site.store.find(f"{TARGET_KEY}/code") is not None
        assert site.target is None, "the key of a planner of one model"
        site.store.put(f"{ACKNOWLEDGED_KEY}/code", FleetAcknowledgement(m.target.fence, m.target.decision, 4).encode())
        known = n.last
        await eventually(lambda: n.last is not known, "the period with the answer")
        state = service.describe()["models"]
        assert (state["m"]["ready"], state["n"]["ready"], state["n"]["ordered"]) == (1, 1, 4)
        site.store.put(PLANNER_SETTINGS_KEY, b'{"models": {"n": {"devices_max": 9}}}')
        await eventually(lambda: bool(n.settings.refused), "the refusal")
        assert "all models have it in common" in n.settings.refused
    site.store.expire(CLAIM)
    async with site.planner("b", models=TWO) as second:
        await eventually(lambda: all(each.last is not None for each in second.fleets), "decisions of the second")
    events = [event for _, event in await site.events()]
    assert {model_of(event) for event in events} == {"m", "n"}
    answers = [event for event in events if isinstance(event, ScaleApplied)]
    assert [(each.model, each.target) for each in answers] == [("n", 4)]
    assert sum(isinstance(event, WorkerStarting) and event.model == "n" for event in events) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"models": []}, "planner.models: give settings by the names of models"),
        ({"models": {"n": 3}}, "planner.models: give settings by the names of models"),
        ({"models": {"n": {"mode": "advise"}}}, "planner.models.n.mode: all models have it in common"),
    ],
)
def test_settings_of_models_that_cannot_be_are_one_sentence(given: dict[str, Any], told: str) -> None:
    """The planner of one model has none."""
    with pytest.raises(CallerError, match=told):
        given_for("n", given)
    with pytest.raises(CallerError, match=r"planner\.models: no such setting"):
        merged(SETTINGS, True, given_for("", given))


def test_settings_of_one_model_stand_below_its_name() -> None:
    """Over those of all; without any of its own, it is not named."""
    given = {"max": 4, "models": {"m": {"max": 2}}}
    assert given_for("m", given) == {"max": 2}
    assert given_for("n", given) == {"max": 4}
    assert with_own_settings("n", given, {"max": 3}) == {"max": 4, "models": {"m": {"max": 2}, "n": {"max": 3}}}
    assert with_own_settings("m", given, {}) == {"max": 4}


async def test_a_judge_answers_beside_the_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands in a later decision, and names the one that it was asked about. Its process is gone with the
    lead."""
    monkeypatch.setattr(judge_plan, "SAMPLE_MIN", 2)
    monkeypatch.setattr(planner_module, "JUDGE_EVERY_MS", 0)
    async with site.planner("a", models=(planned(settings=replace(SETTINGS, judge=ON)),)) as service:
        await eventually(decided(service), "a decision")
        for number in range(4):
            await site.log.write(*arrival(f"r{number}"), end(f"r{number}"))
        await eventually(lambda: service.judge.outcomes[JUDGED], "an answer")
        await eventually(lambda: service.fleets[0].last.judged is not UNSET, "its decision")  # type: ignore[union-attr]
        judged = service.fleets[0].last.judged  # type: ignore[union-attr]
        assert judged.absent == "", judged  # type: ignore[union-attr]
        state = orjson.loads(orjson.dumps(service.describe()))
        assert state["judge"]["outcomes"].keys() == {"judged", "late", "killed", "wrong"}
        assert sum(state["judge"]["outcomes"].values()) == state["judge"]["outcomes"]["judged"] > 0
        await service.stop()
        assert service.judge._process.pid is None
    decisions = [event for _, event in await site.events() if isinstance(event, ScaleDecided)]
    found = next(event.judged for event in decisions if isinstance(event.judged, ScaleJudgement))
    assert found.asked_ms in {event.at_ms for event in decisions}
