"""FleetPlanner: the machine that sizes the fleets of all models. Each model has a `Planner`; here their devices are
divided.

The events of one period stand in this order: demand, settings and speeds of all models, then the decisions with their
orders. So each decision rests on events before it, and all decisions of a message share the same devices.

Prefill workers of a model are a fleet of their own, with a key of their own in the place of the model
(`core.events.scale.fleet_key`). They come behind the decode workers of their model, whose events have the demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from actors.planning.planner import PeriodEnded, Planner, PlannerCommand, WorkerReady
from core.machine import Tick
from projections.scaling.fleet_decision import decide_fleet
from projections.scaling.scale_decision import ScaleInputs


class FleetPeriodEnded(NamedTuple):
    """A period's demand is rolled, for each model."""

    periods: Mapping[str, PeriodEnded]


class ModelWorkerReady(NamedTuple):
    """An ordered worker of the model serves."""

    model: str
    ready: WorkerReady


FleetPlannerEvent = FleetPeriodEnded | ModelWorkerReady


class ModelCommand(NamedTuple):
    """A command of one model's planner."""

    model: str
    command: PlannerCommand


class FleetPlanner:
    """See the module's text."""

    def __init__(self, planners: Sequence[Planner], devices: Mapping[str, int]) -> None:
        """`devices` are those of each model's worker, which count while its capacity is not known. One planner may be
        of no model: then it is the only one."""
        self.planners = {planner.fleet: planner for planner in planners}
        self._devices = devices

    def __repr__(self) -> str:
        return f"<FleetPlanner of {len(self.planners)} models>"

    @property
    def due_us(self) -> int | None:
        """Nothing is due by time: the shell ends each period."""
        return None

    def step(self, event: FleetPlannerEvent | Tick, now_us: int) -> Sequence[ModelCommand]:
        """Events to append, and orders behind the events that name them. A decision takes some milliseconds for each
        model."""
        match event:
            case FleetPeriodEnded(periods):
                return self._on_period(periods)
            case ModelWorkerReady(model, ready):
                return [ModelCommand(model, command) for command in self.planners[model].step(ready, now_us)]
            case Tick():
                return ()

    def _on_period(self, periods: Mapping[str, PeriodEnded]) -> list[ModelCommand]:
        found: list[ModelCommand] = []
        inputs: dict[str, ScaleInputs] = {}
        for model in periods:
            commands: list[PlannerCommand] = []
            self.planners[model].begin(commands)
            found += (ModelCommand(model, command) for command in commands)
        for model, ended in periods.items():
            commands = []
            known = self.planners[model].end_period(ended, commands)
            if known is not None:
                inputs[model] = known
            found += (ModelCommand(model, command) for command in commands)
        for model, decided in decide_fleet(inputs, self._budget(periods, inputs)).items():
            commands = []
            self.planners[model].conclude(decided, periods[model].acts, commands)
            found += (ModelCommand(model, command) for command in commands)
        return found

    def _budget(self, periods: Mapping[str, PeriodEnded], inputs: Mapping[str, ScaleInputs]) -> int | None:
        """Devices that the deciding models share; None without a bound. Models that do not decide yet keep theirs."""
        most = min((planner.fold.settings.devices_max for planner in self.planners.values()), default=0)
        if not most or len(self.planners) == 1:
            return None
        for model, planner in self.planners.items():
            if model not in inputs:
                ready = periods[model].ready if model in periods else 0
                most -= max(planner.fold.settings.min, ready + planner.coming) * self._devices[model]
        return max(0, most)
