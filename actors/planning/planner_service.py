"""PlannerService: a planner beside a live fleet. Of several, one leads; the others stand by.

1. The leading planner holds a claim in the registry. It folds the scale stream, follows the routing stream, and ends a
   period every `period_s` by the broker's clock.
2. The events of a period are one message. Only when the log has it, the target goes to the registry: so no order
   precedes its decision. The log refuses a planner whose successor has written.
3. A worker is ready while it is registered. A worker that appears is the oldest order that is not ready.
4. Forecasters of other libraries answer beside the loop (`actors.planning.forecast_process`). Their newest answer is an
   input of the decision, in which its output stands.
5. A hand acknowledges each target in the registry. The newest answer to a target of this lead is an event of the next
   period; no decision waits for it.
6. While the log or the registry is away nothing is decided, and the fleet stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from actors.membership.registration import registration_of
from actors.planning.demand_reader import DemandReader
from actors.planning.fleet_target import ACKNOWLEDGED_KEY, TARGET_KEY, FleetAcknowledgement, FleetTarget
from actors.planning.forecast_process import ForecastProcess
from actors.planning.planner import PeriodEnded, Planner, RecordEvent, WorkerReady
from actors.planning.planner_settings import PlannerSettings
from actors.planning.quiet_periods import QuietPeriods, is_at_rest
from actors.planning.scale_writer import ScaleWriter
from core.clock import Clock
from core.errors import ContrailError, PeerError
from core.events.kv import DECODE
from core.events.scale import MEASURED, CapacityLearned, DemandRolled, ScaleDecided, ScaleEvent
from core.ids import StreamSeq
from core.keys import DeploymentKey
from core.subjects import ROUTING
from projections.scaling.scale_settings import ScaleSettings
from projections.scaling.speed_model import EngineBounds, SpeedModel
from streams.broker_clock import BrokerClock
from streams.log import EventLog
from streams.log_watch import POLL_EVERY_S, LogWatch
from streams.registry import Change, Registry

CLAIM = "planner/leader"
WORKERS = "workers/"
STAND_BY_S = 1.0
"""Interval at which a planner that does not lead asks whether it may."""
CLAIM_EVERY_S = 5.0
"""Interval at which the leading one asks whether it still does."""
CATCH_UP_S = 0.1
"""Interval of looks whether the routing stream is read to its end."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOptions:
    """One planner, and the worker group that it sizes."""

    namespace: str
    name: str
    group: str
    model: str
    """Name of the group's model for clients."""
    settings: ScaleSettings
    """Those of the deployment file …"""
    acts: bool
    """… and whether it lets the planner order workers."""
    profile: CapacityLearned | None
    """Speed of a worker at first; None if there is none until requests have taught one."""
    pass_tokens: int
    """Prompt tokens that one pass of the engine computes at most, where the speed is learned."""
    devices: int = 1
    """Of each worker."""

    @property
    def learns(self) -> bool:
        """False if the profile is that of a simulated engine, which is exact."""
        return self.profile is None or self.profile.origin == MEASURED


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
        self.settings = PlannerSettings(options.settings, options.acts)
        self.clock = BrokerClock(clock)
        self.last: ScaleDecided | None = None
        """The newest decision of this planner."""
        self.rolled: DemandRolled | None = None
        """The newest period of this planner."""
        self.fence: int | None = None
        """Of the claim; None while another leads."""
        self.failed = 0
        """Times that the lead was given up because of an error."""
        self.fault = ""
        """The last of these errors; empty while this planner leads well, or stands by."""
        self._log = log
        self._registry = registry
        self._key = key
        self._on_event = on_event
        self._watch = LogWatch(log, self.clock)
        self._ready: dict[str, tuple[int, int]] = {}
        """By id: tokens of the cache and slots of the group's registered workers."""
        self._target: FleetTarget | None = None
        """In the registry, as its watch told last."""
        self._acknowledged: FleetAcknowledgement | None = None
        """In the registry, until an event has it."""
        self._machine: Planner | None = None
        self.forecasts = ForecastProcess()
        """Idle while the settings name no library's forecaster."""

    def __repr__(self) -> str:
        return f"<PlannerService {self.options.name}, {'leads' if self.fence is not None else 'stands by'}>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        last, rolled, target = self.last, self.rolled, self._target
        return {
            "name": self.options.name,
            "leads": self.fence is not None,
            "acts": self.settings.acts,
            "settings": self.settings.current.to_mapping(),
            "settings_refused": self.settings.refused,
            "group": self.options.group,
            "fault": self.fault,
            "ready": len(self._ready),
            "starting": 0 if self._machine is None else self._machine.coming,
            "ordered": None if target is None else target.workers,
            "decision": None if last is None else msgspec.to_builtins(last) | {"candidates": len(last.candidates)},
            "demand": None if rolled is None else {"arrivals": rolled.arrivals, "waiting": rolled.waiting},
            "forecasts": {"failures": self.forecasts.failures, "fault": self.forecasts.fault},
            "clock": self.clock.describe(),
        }

    async def run(self) -> None:
        """Leads whenever it may, for ever."""
        await self._watch.start()
        await self._registry.watch(WORKERS, self._on_registered)
        await self._registry.watch(TARGET_KEY, self._on_target)
        await self._registry.watch(ACKNOWLEDGED_KEY, self._on_acknowledged)
        await self.settings.follow(self._registry)
        while True:
            try:
                if await self._claimed():
                    await self._lead()
            except Exception as error:  # after any defect the claim must be given to another, and the lead tried again
                self.failed += 1
                before, self.fault = self.fault, str(error) or repr(error)
                if self.fault != before:
                    _logger.warning(
                        "the lead is given up: %s", self.fault, exc_info=not isinstance(error, ContrailError)
                    )
                await self.stop()
            await asyncio.sleep(STAND_BY_S)

    async def stop(self) -> None:
        """Another planner may lead, and the forecast process is gone. Bounded by the registry's own bound."""
        await self.forecasts.stop()
        if self.fence is None:
            return
        self.fence = self._machine = None
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
        it, settings = self.options, self.settings.current
        if not self.clock.is_known:  # the log was away at our start, and our own clock may be off by hours
            await self._watch.poll((ROUTING,))
        writer = ScaleWriter(self._log, it.namespace, self._key, self.clock)
        fold = await writer.read()
        reader = DemandReader(self._log, settings, SpeedModel(it.model, it.profile), self.clock.wall_ms)
        target = self._target if self.settings.acts else None
        coming = 0 if target is None else max(0, target.workers - len(self._ready))
        now_ms = self.clock.wall_ms()
        machine = self._machine = Planner(settings, it.profile, fold, coming=coming, now_ms=now_ms, has_hand=True)
        try:
            await reader.start(fold.cursor, fold.rolled_ms)
            while not await reader.caught_up():  # noqa: ASYNC110 - the log sets no event
                await asyncio.sleep(CATCH_UP_S)
            self.fault = ""
            await self._end_periods(machine, reader, writer)
        finally:
            await reader.stop()

    async def _end_periods(self, machine: Planner, reader: DemandReader, writer: ScaleWriter) -> None:
        loop = asyncio.get_running_loop()
        next_s = claimed_s = polled_s = loop.time()
        known, quiet = set(self._ready), QuietPeriods()
        while True:
            next_s = max(next_s + self.settings.current.period_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            if loop.time() - claimed_s >= CLAIM_EVERY_S:
                claimed_s = loop.time()
                if not await self._claimed():
                    return
            if loop.time() - polled_s >= POLL_EVERY_S:
                polled_s = loop.time()
                await self._watch.poll()
            await self._end_period(machine, reader, writer, known, quiet)
            known = set(self._ready)

    async def _end_period(
        self, machine: Planner, reader: DemandReader, writer: ScaleWriter, known: set[str], quiet: QuietPeriods
    ) -> None:
        now_ms = self.clock.wall_ms()
        rolled = reader.roll(now_ms)
        if rolled is None:
            return
        settings = self.settings.current
        reader.use(settings)
        is_known = settings == machine.fold.settings and self._acknowledged is None
        if quiet.hold(rolled, rests=is_known and is_at_rest(machine.fold, len(self._ready), machine.coming)):
            return
        *earlier, rolled = quiet.take(rolled)
        now_us = self.clock.monotonic_us()
        for _ in range(len(self._ready.keys() - known)):
            if (order := machine.oldest_order) is not None:
                machine.step(WorkerReady(order, now_ms), now_us)
        is_learned = self.options.learns and self._ready  # without a worker there are no bounds of an engine
        speed = reader.speed.learned(self._bounds(), now_ms) if is_learned else None
        if machine.horizon_s is not None:
            self.forecasts.ask(settings, machine.fold.history, machine.horizon_s)
        ended = PeriodEnded(
            rolled,
            len(self._ready),
            0,
            speed,
            settings,
            self.settings.acts,
            self._answer(),
            self.forecasts.foreseen,
            tuple(earlier),
        )
        commands = machine.step(ended, now_us)
        events = [command.event for command in commands if isinstance(command, RecordEvent)]
        seq = await writer.append(events)
        self.rolled = rolled
        for event in events:
            if isinstance(event, ScaleDecided):
                self.last = event
            self._on_event(event)
        if self.settings.acts and self.last is not None and self.last.at_ms == now_ms:
            await self._order(machine, seq)

    async def _order(self, machine: Planner, seq: StreamSeq) -> None:
        """The registry has the number of workers that the decision wants. Those that are overdue are included, as far
        as the settings allow so many."""
        assert self.fence is not None
        assert self.last is not None
        drained = max(0, self.last.ready - self.last.target)
        most = self.settings.current.workers_max(self.options.devices)
        workers = min(self.last.ready - drained + machine.coming, most)
        target = FleetTarget(self.fence, int(seq), self.options.group, workers)
        known = self._target
        if known is None or (known.workers, known.group) != (workers, target.group) or known.fence != self.fence:
            await self._registry.put(TARGET_KEY, target.encode())
            self._target = target

    def _on_acknowledged(self, change: Change) -> None:
        if change.key != ACKNOWLEDGED_KEY or change.value is None:
            return
        try:
            self._acknowledged = FleetAcknowledgement.parse(change.value)
        except PeerError as error:
            _logger.error("%s", error)  # noqa: TRY400  # its text has all

    def _answer(self) -> FleetAcknowledgement | None:
        """The hand's answer to a target of this lead, once. That to another planner's target is not recorded: the hand
        answers again to the first target of this lead."""
        answer, self._acknowledged = self._acknowledged, None
        target = self._target
        if answer is None or target is None or not answer.fence == target.fence == self.fence:
            return None
        return answer if answer.decision <= target.decision else None

    def _bounds(self) -> EngineBounds:
        """Of the smallest engine of the group's ready workers."""
        rooms = [room for room, _ in self._ready.values() if room]
        slots = [slots for _, slots in self._ready.values() if slots]
        it = self.options
        return EngineBounds(min(rooms, default=0), min(slots, default=0), it.pass_tokens, it.devices)

    def _on_registered(self, change: Change) -> None:
        worker = change.key.removeprefix(WORKERS)
        found = registration_of(change)
        if found is None or found.role != DECODE or found.model != self.options.model:
            self._ready.pop(worker, None)
            return
        self._ready[worker] = found.capacity_blocks * found.block_size, found.slots

    def _on_target(self, change: Change) -> None:
        if change.key != TARGET_KEY:
            return
        try:
            self._target = None if change.value is None else FleetTarget.parse(change.value)
        except PeerError as error:
            _logger.error("%s", error)  # noqa: TRY400  # its text has all
            self._target = None
