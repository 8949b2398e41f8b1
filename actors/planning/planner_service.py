"""PlannerService: a planner beside live fleets, of one model or of several, and of both roles. Of several planners, one
leads; the others stand by.

1. The leading planner holds a claim in the registry. It folds the scale stream, follows the routing stream, and ends a
   period every `period_s` by the broker's clock.
2. The events of a period are one message. Only when the log has it, the target goes to the registry: so no order
   precedes its decision. The log refuses a planner whose successor has written.
3. Each model has its fleet (`actors.planning.model_fleet`): its workers, its settings, its target. Where its prefill
   workers are sized, too, these are a fleet of their own, with the model's demand.
4. Forecasters of other libraries answer beside the loop (`actors.planning.forecast_process`). Their newest answer is an
   input of the decision, in which its output stands.
5. A hand acknowledges each target in the registry. The newest answer to a target of this lead is an event of the next
   period; no decision waits for it.
6. Simulations judge beside the loop, too (`actors.planning.judge_process`), where the settings ask for a judge.
7. While the log or the registry is away nothing is decided, and the fleet stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from msgspec import UNSET

from actors.planning.demand_reader import DemandReader
from actors.planning.fleet_planner import FleetPeriodEnded, FleetPlanner, ModelCommand, ModelWorkerReady
from actors.planning.fleet_target import ONLY_GROUP, FleetKeys
from actors.planning.judge_process import JudgeProcess
from actors.planning.model_fleet import ModelFleet, PlannedModel
from actors.planning.planner import AskJudge, PeriodEnded, RecordEvent
from actors.planning.quiet_periods import QuietPeriods
from actors.planning.scale_writer import ScaleWriter
from core.clock import Clock
from core.errors import ContrailError, PeerError
from core.events.kv import PREFILL
from core.events.scale import NO_MODEL, ScaleDecided, ScaleEvent, fleet_key, fleet_of, model_and_role
from core.keys import DeploymentKey
from core.subjects import ROUTING
from projections.scaling.prefill_speed_model import PrefillSpeedModel
from projections.scaling.speed_model import SpeedModel
from streams.broker_clock import BrokerClock
from streams.log import EventLog
from streams.log_watch import POLL_EVERY_S, LogWatch
from streams.registry import Registry

CLAIM = "planner/leader"
STAND_BY_S = 1.0
"""Interval at which a planner that does not lead asks whether it may."""
CLAIM_EVERY_S = 5.0
"""Interval at which the leading one asks whether it still does."""
CATCH_UP_S = 0.1
"""Interval of looks whether the routing stream is read to its end."""
STALLED_S = 5.0
"""A period that ends so much too late had to wait for the log or the registry: a call may wait until they are back, and
meet no error."""
SETTLE_S = 10.0
"""After an error, or a wait as long as that, the next period ends so much later. Front ends send what they kept while
the log was away: it counts in the time in which it came, and is no burst behind it."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOptions:
    """One planner, and the fleets that it sizes."""

    namespace: str
    name: str
    models: tuple[PlannedModel, ...]
    """One at least. Prefill workers of a model come behind its decode workers."""
    acts: bool
    """The deployment file lets the planner order workers."""
    judge: tuple[str, ...]
    """The command of the program that simulates (`replay.simulate.scale_judge`)."""

    @property
    def fleets(self) -> list[str]:
        """Their keys in events (`core.events.scale.fleet_key`): the only model has no name there."""
        is_only = len({each.model for each in self.models}) == 1
        return [fleet_key(NO_MODEL if is_only else each.model, each.role) for each in self.models]


class PlannerService:
    """Runs until it is cancelled."""

    def __init__(
        self,
        options: PlannerOptions,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
        on_event: Callable[[ScaleEvent], None] = lambda _: None,
    ) -> None:
        """`on_event` is called for each event that the log has taken from this planner."""
        self.options = options
        is_only = len(options.models) == 1
        helped = {each.model for each in options.models if each.role == PREFILL}
        self.fleets = [
            ModelFleet(
                each,
                options.acts,
                fleet,
                ONLY_GROUP if is_only else FleetKeys.of(each.group),
                has_prefill=each.model in helped,
            )
            for each, fleet in zip(options.models, options.fleets, strict=True)
        ]
        """In the order of the options."""
        self.judge = JudgeProcess(options.judge)
        """Idle while the settings ask for no judge."""
        self.clock = BrokerClock(clock)
        self.fence: int | None = None
        """Of the claim; None while another leads."""
        self.failed = 0
        """Times that the lead was given up because of an error."""
        self.fault = ""
        """The last of these errors; empty while this planner leads well, or stands by."""
        self._settles = False
        """An error was met since the last period."""
        self._log = log
        self._registry = registry
        self._key = key
        self._on_event = on_event
        self._watch = LogWatch(log, self.clock)

    def __repr__(self) -> str:
        return f"<PlannerService {self.options.name}, {'leads' if self.fence is not None else 'stands by'}>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        first = self.fleets[0]
        models: dict[str, dict[str, Any]] = {}
        for each in self.fleets:
            if each.planned.role == PREFILL:
                models[each.planned.model]["prefill"] = each.describe()
            else:
                models[each.planned.model] = each.describe()
        return {
            "name": self.options.name,
            "leads": self.fence is not None,
            "acts": first.settings.acts,
            "fault": self.fault,
            **({"models": models} if len(models) > 1 else models[first.planned.model]),
            "judge": {"outcomes": self.judge.outcomes, "fault": self.judge.fault},
            "clock": self.clock.describe(),
        }

    @property
    def forecast_failures(self) -> int:
        """Questions to forecast processes that had no answer in time."""
        return sum(each.forecasts.failures for each in self.fleets)

    @property
    def forecast_fault(self) -> str:
        """The reason of the last of them; empty after an answer."""
        return next((each.forecasts.fault for each in self.fleets if each.forecasts.fault), "")

    async def run(self) -> None:
        """Leads whenever it may, for ever."""
        await self._watch.start()
        for fleet in self.fleets:
            await fleet.follow(self._registry)
        while True:
            try:
                if await self._claimed():
                    await self._lead()
            except Exception as error:  # after any defect the claim must be given to another, and the lead tried again
                self.failed += 1
                self._settles = True
                before, self.fault = self.fault, str(error) or repr(error)
                if self.fault != before:
                    _logger.warning(
                        "the lead is given up: %s", self.fault, exc_info=not isinstance(error, ContrailError)
                    )
                await self.stop()
            await asyncio.sleep(STAND_BY_S)

    async def stop(self) -> None:
        """Another planner may lead, and the forecast processes and the judge's are gone. Bounded by the registry's own
        bound."""
        for fleet in self.fleets:
            await fleet.stop()
        await self.judge.stop()
        if self.fence is None:
            return
        self.fence = None
        try:
            await self._registry.unregister(CLAIM)
        except PeerError as error:
            _logger.warning("the registry is away, our claim goes with its lease: %s", error)

    async def _claimed(self) -> bool:
        before = self.fence
        self.fence = await self._registry.claim(CLAIM, orjson.dumps({"name": self.options.name}))
        if self.fence != before:
            _logger.info("this planner %s", "leads now" if self.fence is not None else "does not lead any more")
        return self.fence is not None

    async def _lead(self) -> None:
        """Ends when another has the claim; an error says why the lead is given up."""
        if not self.clock.is_known:  # the log was away at our start, and our own clock may be off by hours
            await self._watch.poll((ROUTING,))
        writer = ScaleWriter(self._log, self.options.namespace, self._key, self.clock)
        fold = await writer.read()
        settings = {each.name: each.settings.current for each in self.fleets}
        speeds = {each.name: each.speed_model() for each in self.fleets}
        reader = DemandReader(self._log, settings, tuple(speeds.values()), self.clock.wall_ms)
        now_ms = self.clock.wall_ms()
        planners = [each.lead(fold.of(each.name), now_ms) for each in self.fleets]
        machine = FleetPlanner(planners, {each.name: each.planned.devices for each in self.fleets})
        try:
            await reader.start(fold.cursor, fold.rolled_ms)
            while not await reader.caught_up():  # noqa: ASYNC110 - the log sets no event
                await asyncio.sleep(CATCH_UP_S)
            self.fault = ""
            await self._end_periods(_Lead(machine, reader, writer, speeds, QuietPeriods()))
        finally:
            await reader.stop()

    async def _end_periods(self, lead: _Lead) -> None:
        loop = asyncio.get_running_loop()
        next_s = ended_s = claimed_s = polled_s = loop.time()
        if self._settles:
            next_s = ended_s = next_s + SETTLE_S
        while True:
            period_s = self.fleets[0].settings.current.period_s
            next_s = max(next_s + period_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            if loop.time() - claimed_s >= CLAIM_EVERY_S:
                claimed_s = loop.time()
                if not await self._claimed():
                    return
            if loop.time() - polled_s >= POLL_EVERY_S:
                polled_s = loop.time()
                await self._watch.poll()
            if loop.time() - ended_s >= period_s + STALLED_S:
                next_s = ended_s = loop.time() + SETTLE_S - period_s  # so the next turn ends a period in SETTLE_S
                continue
            ended_s = loop.time()
            await self._end_period(lead)
            self._settles = False

    async def _end_period(self, lead: _Lead) -> None:
        assert self.fence is not None
        now_ms, now_us = self.clock.wall_ms(), self.clock.monotonic_us()
        rolled = lead.reader.roll(now_ms)
        if not rolled:
            return
        lead.reader.use({each.name: each.settings.current for each in self.fleets})
        if lead.quiet.hold(rolled, rests=all(each.rests for each in self.fleets)):
            return
        earlier = lead.quiet.take(rolled)
        periods: dict[str, PeriodEnded] = {}
        for fleet in self.fleets:
            name = fleet.name
            for ready in fleet.appeared(now_ms):
                lead.machine.step(ModelWorkerReady(name, ready), now_us)
            model, _ = model_and_role(name)
            period = fleet.period(earlier[model], rolled[model], lead.speeds[name], self.fence)
            periods[name] = period._replace(answer=self.judge.take(name))
        commands = lead.machine.step(FleetPeriodEnded(periods), now_us)
        events = [command.event for _, command in commands if isinstance(command, RecordEvent)]
        seq = await lead.writer.append(events)
        decided = {fleet_of(event): event for event in events if isinstance(event, ScaleDecided)}
        for fleet in self.fleets:
            fleet.rolled = rolled[model_and_role(fleet.name)[0]]
            fleet.last = decided.get(fleet.name, fleet.last)
        for event in events:
            self._on_event(event)
        self._ask_judge(commands)
        for name, most in orders_max(decided, self._bounds()).items():
            fleet = next(each for each in self.fleets if each.name == name)
            if fleet.settings.acts:
                await fleet.order(self._registry, self.fence, int(seq), most)

    def _ask_judge(self, commands: Sequence[ModelCommand]) -> None:
        """The decisions about which is asked stand in the log."""
        for model, command in commands:
            if isinstance(command, AskJudge):
                self.judge.ask(model, command.plan)

    def _bounds(self) -> dict[str, OrderBounds]:
        return {
            each.name: OrderBounds(each.settings.current.workers_max(each.planned.devices), each.planned.devices)
            for each in self.fleets
        }


class _Lead(NamedTuple):
    """The parts of one lead."""

    machine: FleetPlanner
    reader: DemandReader
    writer: ScaleWriter
    speeds: dict[str, SpeedModel | PrefillSpeedModel]
    quiet: QuietPeriods


class OrderBounds(NamedTuple):
    """Of one fleet's orders."""

    most: int
    """Workers that its settings allow."""
    devices: int
    """Of each worker."""


def orders_max(decided: Mapping[str, ScaleDecided], bounds: Mapping[str, OrderBounds]) -> dict[str, int]:
    """By fleet, the workers that may be ordered, those that are overdue included: they may hold their devices. Where
    fleets share devices, overdue workers have those that no target takes; fleets come in the order of the decisions."""
    found = {fleet: bounds[fleet].most for fleet in decided}
    budgets = [event.budget for event in decided.values() if event.budget is not UNSET]
    if not budgets:
        return found
    left = min(budgets) - sum(event.target * bounds[fleet].devices for fleet, event in decided.items())
    for fleet, event in decided.items():
        devices = max(1, bounds[fleet].devices)
        more = min(event.overdue, max(0, found[fleet] - event.target), max(0, left) // devices)
        left -= more * devices
        found[fleet] = event.target + more
    return found
