"""SimulatedPlanner, SimulatedRolePlanner: they size the workers of a simulation, the second one decode and prefill
workers together. Each drives a planner's machine in virtual time, and carries its orders out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from actors.planning.fleet_planner import (
    FleetPeriodEnded,
    FleetPlanner,
    FleetPlannerEvent,
    ModelWorkerReady,
)
from actors.planning.planner import (
    AskJudge,
    CancelStart,
    DrainWorker,
    PeriodEnded,
    Planner,
    PlannerCommand,
    PlannerEvent,
    RecordEvent,
    StartWorker,
    WorkerReady,
)
from actors.planning.scale_writer import PLANNER
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    NO_MODEL,
    CapacityLearned,
    DemandRolled,
    ScaleEvent,
    ScaleJudgement,
    fleet_key,
    model_and_role,
)
from core.machine import Machine
from core.subjects import ROUTING, SCALE
from projections.scaling.fleet_demand import FleetDemand
from projections.scaling.judge_plan import JudgePlan
from projections.scaling.prefill_speed_model import PrefillSpeedModel
from projections.scaling.scale_settings import ScaleSettings
from projections.scaling.speed_model import EngineBounds, SpeedModel
from replay.simulate.options import Options
from replay.simulate.simulated_fleet import SimulatedFleet
from replay.simulate.simulated_log import EPOCH, SimulatedLog, SimulatedSource
from replay.simulate.simulated_request import MODEL
from replay.simulate.virtual_time import Agenda, VirtualShell

PlannerMachine = Machine[PlannerEvent, PlannerCommand]
MakePlanner = Callable[[ScaleSettings, CapacityLearned | None], PlannerMachine]
Judge = Callable[[JudgePlan], ScaleJudgement]
US_PER_S = 1_000_000
JUDGE_US = 10_000_000
"""Virtual time from a question to a judge until its answer."""
ROLES = (DECODE, PREFILL)
FLEETS = tuple(fleet_key(NO_MODEL, role) for role in ROLES)


class SimulatedPeriods:
    """Ends each period of a planner, with the demand and the learned speed that the log shows by then."""

    def __init__(
        self,
        options: Options,
        settings: Mapping[str, ScaleSettings],
        agenda: Agenda,
        log: SimulatedLog,
        on_end: Callable[[DemandRolled, Mapping[str, CapacityLearned]], None],
    ) -> None:
        """Settings by fleet, those of decode workers among them. So are the speeds that are learned, as far as they
        are known."""
        engine = options.engine
        self._period_s = settings[NO_MODEL].period_s
        self._speeds: dict[str, SpeedModel | PrefillSpeedModel] = {}
        """By fleet; empty if the planner is told the speed."""
        for fleet in settings if options.learns else ():
            kind = PrefillSpeedModel if model_and_role(fleet)[1] == PREFILL else SpeedModel
            self._speeds[fleet] = kind(MODEL, options.profile)
        self._bounds = EngineBounds(
            engine.capacity_blocks * engine.block_size, engine.max_seqs, engine.batched_tokens_max
        )
        self._agenda = agenda
        self._log = log
        self._on_end = on_end
        self._demand = FleetDemand(settings)
        self._reader = log.reader(0, self._count)
        self._put()

    def __repr__(self) -> str:
        return f"<SimulatedPeriods of {self._period_s} s, {self._demand!r}>"

    def _put(self) -> None:
        self._agenda.put(self._agenda.now_us + self._period_s * US_PER_S, self._end)

    def _count(self) -> None:
        """All messages that are written by now are counted."""
        for frame in self._reader.until(self._agenda.now_us):
            if frame.stream == ROUTING and frame.message is not None:
                for event in frame.message.events:
                    self._demand.apply(event)
                    for speed in self._speeds.values():
                        speed.apply(event)

    def _end(self) -> None:
        self._count()
        cursor: dict[str, tuple[int, int]] = {ROUTING: (EPOCH, self._log.last_seq(ROUTING))}
        rolled = self._demand.roll(NO_MODEL, self._log.now_ms, self._period_s, cursor)
        found = {fleet: speed.learned(self._bounds, self._log.now_ms) for fleet, speed in self._speeds.items()}
        self._on_end(rolled, {fleet: each for fleet, each in found.items() if each is not None})
        self._put()


class SimulatedPlanner:
    """Sizes workers that have no roles."""

    def __init__(
        self,
        options: Options,
        machine: PlannerMachine,
        agenda: Agenda,
        log: SimulatedLog,
        fleet: SimulatedFleet,
        judge: Judge | None,
    ) -> None:
        """The options have settings of a planner. The machine has the `judge`'s answer JUDGE_US of virtual time
        after its question; without a judge it has none."""
        settings = options.planner
        assert settings is not None
        self._startup_us = settings.startup_s * US_PER_S
        self._agenda = agenda
        self._log = log
        self._fleet = fleet
        self._shell: VirtualShell[PlannerEvent, PlannerCommand] = VirtualShell(machine, agenda, self._execute)
        self._source = SimulatedSource(log, SCALE, PLANNER)
        self._ask_judge = judge
        self._answer: ScaleJudgement | None = None
        """Of the judge, for the next period."""
        self._periods = SimulatedPeriods(options, {NO_MODEL: settings}, agenda, log, self._on_period)

    def __repr__(self) -> str:
        return f"<SimulatedPlanner, {self._periods!r}>"

    def _on_period(self, rolled: DemandRolled, learned: Mapping[str, CapacityLearned]) -> None:
        answer, self._answer = self._answer, None
        self._shell.feed(PeriodEnded(rolled, *self._fleet.counts(), learned.get(NO_MODEL), answer=answer))

    def _execute(self, command: PlannerCommand) -> None:
        match command:
            case RecordEvent(event):
                self._source.append([event])
            case StartWorker(start):
                self._fleet.start_worker(start, self._startup_us, self._on_ready)
            case CancelStart(start):
                self._fleet.cancel_start(start)
            case DrainWorker():
                self._fleet.drain_worker()
            case AskJudge(plan):
                if self._ask_judge is not None:
                    self._agenda.put(self._agenda.now_us + JUDGE_US, partial(self._on_answer, self._ask_judge(plan)))

    def _on_answer(self, answer: ScaleJudgement) -> None:
        self._answer = answer

    def _on_ready(self, start: int) -> None:
        self._shell.feed(WorkerReady(start, self._log.now_ms))


class SimulatedRolePlanner:
    """Sizes decode and prefill workers. The events of a period are one message."""

    def __init__(
        self,
        options: Options,
        speed: CapacityLearned | None,
        agenda: Agenda,
        log: SimulatedLog,
        fleet: SimulatedFleet,
    ) -> None:
        """The options have settings of a planner, and prefill workers. `speed` is that of workers of both roles at
        first; None if there is none until requests have taught one."""
        assert options.planner is not None
        self._settings = dict(zip(FLEETS, (options.planner, options.prefill_planner), strict=True))
        profiles = (speed, None if speed is None else replace(speed, role=PREFILL))
        planners = [
            Planner(settings, known, role=role)
            for settings, known, role in zip(self._settings.values(), profiles, ROLES, strict=True)
        ]
        self.machine = FleetPlanner(planners, dict.fromkeys(FLEETS, 1))
        self._agenda = agenda
        self._log = log
        self._fleet = fleet
        self._source = SimulatedSource(log, SCALE, PLANNER)
        self._periods = SimulatedPeriods(options, self._settings, agenda, log, self._on_period)

    def __repr__(self) -> str:
        return f"<SimulatedRolePlanner, {self._periods!r}>"

    def _on_period(self, rolled: DemandRolled, learned: Mapping[str, CapacityLearned]) -> None:
        periods = {
            fleet: PeriodEnded(rolled, *self._fleet.counts(role), learned.get(fleet))
            for fleet, role in zip(FLEETS, ROLES, strict=True)
        }
        self._feed(FleetPeriodEnded(periods))

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
