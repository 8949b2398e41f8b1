"""SimulatedRolePlanner: sizes decode and prefill workers together in a simulation. It drives the planner's machine of
several fleets in virtual time, and carries its orders out at once."""

from __future__ import annotations

from msgspec.structs import replace

from actors.engines.simulated.engine_profile import profile as exact
from actors.planning.fleet_planner import (
    FleetPeriodEnded,
    FleetPlanner,
    FleetPlannerEvent,
    ModelWorkerReady,
)
from actors.planning.planner import (
    CancelStart,
    DrainWorker,
    PeriodEnded,
    Planner,
    PlannerCommand,
    RecordEvent,
    StartWorker,
    WorkerReady,
)
from actors.planning.scale_writer import PLANNER
from core.events.kv import DECODE, PREFILL
from core.events.scale import NO_MODEL, CapacityLearned, ScaleEvent, fleet_key, model_and_role
from core.subjects import ROUTING, SCALE
from projections.scaling.fleet_demand import FleetDemand
from projections.scaling.speed_model import EngineBounds, SpeedModel
from replay.simulate.options import Options
from replay.simulate.simulated_fleet import US_PER_S, SimulatedFleet
from replay.simulate.simulated_log import EPOCH, SimulatedLog, SimulatedSource
from replay.simulate.simulated_request import MODEL
from replay.simulate.virtual_time import Agenda

ROLES = (DECODE, PREFILL)
FLEETS = tuple(fleet_key(NO_MODEL, role) for role in ROLES)


class SimulatedRolePlanner:
    """Ends each period, feeds the machine, and executes its commands. The events of a period are one message."""

    def __init__(
        self,
        options: Options,
        speed: CapacityLearned | None,
        agenda: Agenda,
        log: SimulatedLog,
        fleet: SimulatedFleet,
    ) -> None:
        """The options have settings of a planner, and prefill workers. `speed` is that of decode workers at first; a
        prefill worker has the measured profile of the options, or else the engine's own."""
        assert options.planner is not None
        engine = options.engine
        self._settings = dict(zip(FLEETS, (options.planner, options.prefill_planner), strict=True))
        prefill = exact(engine) if options.profile is None else options.profile
        profiles = (speed, replace(prefill, role=PREFILL))
        planners = [
            Planner(settings, known, role=role)
            for settings, known, role in zip(self._settings.values(), profiles, ROLES, strict=True)
        ]
        self.machine = FleetPlanner(planners, dict.fromkeys(FLEETS, 1))
        self._speed = SpeedModel(MODEL, options.profile) if options.learns else None
        self._bounds = EngineBounds(
            engine.capacity_blocks * engine.block_size, engine.max_seqs, engine.batched_tokens_max
        )
        self._agenda = agenda
        self._log = log
        self._fleet = fleet
        self._source = SimulatedSource(log, SCALE, PLANNER)
        self._demand = FleetDemand(self._settings)
        self._reader = log.reader(0, self._count)
        self._put_period()

    def __repr__(self) -> str:
        return f"<SimulatedRolePlanner, {self._demand!r}>"

    def _put_period(self) -> None:
        self._agenda.put(self._agenda.now_us + self._settings[NO_MODEL].period_s * US_PER_S, self._end_period)

    def _count(self) -> None:
        """All messages that are written by now are counted."""
        for frame in self._reader.until(self._agenda.now_us):
            if frame.stream == ROUTING and frame.message is not None:
                for event in frame.message.events:
                    self._demand.apply(event)
                    if self._speed is not None:
                        self._speed.apply(event)

    def _end_period(self) -> None:
        self._count()
        cursor: dict[str, tuple[int, int]] = {ROUTING: (EPOCH, self._log.last_seq(ROUTING))}
        rolled = self._demand.roll(NO_MODEL, self._log.now_ms, self._settings[NO_MODEL].period_s, cursor)
        learned = None if self._speed is None else self._speed.learned(self._bounds, self._log.now_ms)
        speeds = (learned, None)
        periods = {
            fleet: PeriodEnded(rolled, *self._fleet.counts(role), speed)
            for fleet, role, speed in zip(FLEETS, ROLES, speeds, strict=True)
        }
        self._feed(FleetPeriodEnded(periods))
        self._put_period()

    def _feed(self, event: FleetPlannerEvent) -> None:
        """The events stand in the log before an order is carried out."""
        commands = self.machine.step(event, self._agenda.now_us)
        events: list[ScaleEvent] = [it.command.event for it in commands if isinstance(it.command, RecordEvent)]
        self._source.append(events)
        for fleet, command in commands:
            self._execute(fleet, command)

    def _execute(self, fleet: str, command: PlannerCommand) -> None:
        _, role = model_and_role(fleet)
        match command:
            case StartWorker(start):
                startup_us = self._settings[fleet].startup_s * US_PER_S
                self._fleet.start_worker(start, startup_us, lambda start: self._on_ready(fleet, start), role)
            case CancelStart(start):
                self._fleet.cancel_start(start, role)
            case DrainWorker():
                self._fleet.drain_worker(role)
            case RecordEvent():
                pass  # it stands in the log already

    def _on_ready(self, fleet: str, start: int) -> None:
        self._feed(ModelWorkerReady(fleet, WorkerReady(start, self._log.now_ms)))
