"""SimulatedPlanner: drives the planner's machine in virtual time, and carries its orders out at once."""

from __future__ import annotations

from collections.abc import Callable

from actors.engines.simulated.pass_timing import PassBatch, timing_of
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.planning.planner import (
    CancelStart,
    DrainWorker,
    PeriodEnded,
    PlannerCommand,
    PlannerEvent,
    Record,
    StartWorker,
    WorkerReady,
)
from core.events.scale import CapacityLearned
from core.machine import Machine
from core.scale_settings import ScaleSettings
from core.subjects import ROUTING, SCALE
from projections.scaling.request_demand import RequestDemand
from replay.simulate.simulated_fleet import SimulatedFleet
from replay.simulate.simulated_log import EPOCH, SimulatedLog, SimulatedSource
from replay.simulate.virtual_time import Agenda, VirtualShell

OWNER = "planner"
"""Of the subject in the scale stream, and the source there."""
PlannerMachine = Machine[PlannerEvent, PlannerCommand]
MakePlanner = Callable[[ScaleSettings, CapacityLearned], PlannerMachine]
US_PER_S = 1_000_000


class SimulatedPlanner:
    """Ends each period, feeds the machine, and executes its commands."""

    def __init__(
        self, settings: ScaleSettings, machine: PlannerMachine, agenda: Agenda, log: SimulatedLog, fleet: SimulatedFleet
    ) -> None:
        self._settings = settings
        self._agenda = agenda
        self._log = log
        self._fleet = fleet
        self._shell: VirtualShell[PlannerEvent, PlannerCommand] = VirtualShell(machine, agenda, self._execute)
        self._source = SimulatedSource(log, SCALE, OWNER)
        self._demand = RequestDemand(settings)
        self._reader = log.reader(0, self._count)
        self._put_period()

    def __repr__(self) -> str:
        return f"<SimulatedPlanner, {self._demand!r}>"

    def _put_period(self) -> None:
        self._agenda.put(self._agenda.now_us + self._settings.period_s * US_PER_S, self._end_period)

    def _count(self) -> None:
        """All messages that are written by now are counted."""
        for frame in self._reader.until(self._agenda.now_us):
            if frame.stream == ROUTING and frame.message is not None:
                for event in frame.message.events:
                    self._demand.apply(event)

    def _end_period(self) -> None:
        self._count()
        cursor = {ROUTING: (EPOCH, self._log.last_seq(ROUTING))}
        rolled = self._demand.roll(self._log.now_ms, self._settings.period_s, cursor)
        self._shell.feed(PeriodEnded(rolled, *self._fleet.counts))
        self._put_period()

    def _execute(self, command: PlannerCommand) -> None:
        match command:
            case Record(event):
                self._source.append([event])
            case StartWorker(start):
                self._fleet.start_worker(start, self._settings.startup_s * US_PER_S, self._on_ready)
            case CancelStart(start):
                self._fleet.cancel_start(start)
            case DrainWorker():
                self._fleet.drain_worker()

    def _on_ready(self, start: int) -> None:
        self._shell.feed(WorkerReady(start, self._log.now_ms))


POINTS = 16
"""Lengths at which a profile measures prefills and decode steps, equally far apart, beside the first token."""


def profile(settings: SimulatedSettings) -> CapacityLearned:
    """The speed of a simulated engine, measured: passes of one prompt, and decode steps of one request."""
    timing, chunk = timing_of(settings), settings.batched_tokens_max
    room = settings.capacity_blocks * settings.block_size
    prefill, decode = _points(chunk), _points(room)
    return CapacityLearned(
        at_ms=0,
        pass_tokens=chunk,
        prefill_tokens=tuple(prefill),
        prefill_us=tuple(timing.pass_us(_batch(prompts=1, after=tokens)) for tokens in prefill),
        decode_tokens=tuple(decode),
        decode_us=tuple(timing.pass_us(_batch(decoding=1, context=tokens)) for tokens in decode),
        room_tokens=room,
        slots=settings.max_seqs,
        startup_ms=0,
        starts=0,
        hits=(),
    )


def _points(most: int) -> list[int]:
    return sorted({1, *(most * step // POINTS for step in range(1, POINTS + 1))} - {0})


def _batch(**counts: int) -> PassBatch:
    batch = PassBatch()
    for name in PassBatch.__slots__:
        setattr(batch, name, counts.get(name, 0))
    return batch
