"""Planners of several models in virtual time, whose workers come at once."""

from __future__ import annotations

from collections.abc import Mapping

from actors.planning.fleet_planner import FleetPeriodEnded, FleetPlanner, ModelWorkerReady
from actors.planning.planner import DrainWorker, PeriodEnded, Planner, RecordEvent, StartWorker, WorkerReady
from actors.planning.scale_writer import ScaleWriter
from core.events.scale import CapacityLearned, ScaleDecided, ScaleEvent, model_of
from projections.scaling.scale_settings import ScaleSettings
from tests.actors.planning.planned_log import NAMESPACE, PlannedLog
from tests.projections.scaling.demands import CAPACITY, rolled

SHARED = ScaleSettings(max=8, devices_max=6, down_window_s=20, startup_s=5)
"""Of each model."""
QUIET, BUSY = 5, 400
BUSY_WORKERS = 5
"""That are sought at least at BUSY arrivals."""


class Fleets:
    """`period` makes the decisions of one period."""

    def __init__(self, profiles: Mapping[str, CapacityLearned | None], **settings: ScaleSettings) -> None:
        planners = [Planner(settings[model], profiles[model], model=model) for model in profiles]
        self.planner = FleetPlanner(planners, dict.fromkeys(profiles, 1))
        self.ready = dict.fromkeys(profiles, 1)
        self.messages: list[list[ScaleEvent]] = []
        self._periods = 0

    def period(self, **arrivals: int) -> dict[str, ScaleDecided]:
        """The decisions of one period more."""
        self._periods += 1
        ended = {
            model: PeriodEnded(rolled(self._periods, count), self.ready[model], 0) for model, count in arrivals.items()
        }
        commands = self.planner.step(FleetPeriodEnded(ended), 0)
        events = [command.event for _, command in commands if isinstance(command, RecordEvent)]
        self.messages.append(events)
        for model, command in commands:
            match command:
                case StartWorker(start):
                    self.ready[model] += 1
                    at_ms = ended[model].rolled.at_ms + SHARED.startup_s * 1000
                    self.planner.step(ModelWorkerReady(model, WorkerReady(start, at_ms)), 0)
                case DrainWorker():
                    self.ready[model] -= 1
        return {model_of(event): event for event in events if isinstance(event, ScaleDecided)}


def two(**settings: ScaleSettings) -> Fleets:
    """The models `a` and `b` under these settings."""
    return Fleets({"a": CAPACITY, "b": CAPACITY}, **settings)


async def logged_messages(fleets: Fleets) -> PlannedLog:
    """A log with the messages of the planner."""
    log = await PlannedLog().made()
    writer = ScaleWriter(log, NAMESPACE, log.key, log.clock)
    await writer.read()
    for message in fleets.messages:
        await writer.append(message)
    return log
