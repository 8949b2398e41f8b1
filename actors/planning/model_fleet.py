"""ModelFleet: a model's workers of one role as the registry shows them, and the target that a planner gives them.

A worker is ready while it is registered. A worker that appears is taken for the oldest order that is not ready.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.membership.registration import registration_of
from actors.planning.fleet_target import ONLY_GROUP, FleetAcknowledgement, FleetKeys, FleetTarget
from actors.planning.forecast_process import ForecastProcess
from actors.planning.planner import PeriodEnded, Planner, WorkerReady
from actors.planning.planner_settings import PlannerSettings
from actors.planning.quiet_periods import is_at_rest
from core.errors import PeerError
from core.events.kv import DECODE, PREFILL
from core.events.scale import MEASURED, CapacityLearned, DemandRolled, ScaleDecided, model_and_role
from projections.scaling.prefill_speed_model import PrefillSpeedModel
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings
from projections.scaling.speed_model import EngineBounds, SpeedModel
from streams.registry import Change, Registry

WORKERS = "workers/"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """One model's workers of one role, and the worker group that they are."""

    group: str
    model: str
    """Its name for clients."""
    role: str = DECODE
    settings: ScaleSettings
    """Those of the deployment file."""
    profile: CapacityLearned | None
    """Speed of a worker at first; None if there is none until requests have taught one. Of prefill workers it names
    the role."""
    pass_tokens: int
    """Prompt tokens that one pass of the engine computes at most, where the speed is learned."""
    devices: int = 1
    """Of each worker."""

    @property
    def label(self) -> str:
        """The name of its workers for people."""
        return self.model if self.role == DECODE else f"{self.model}/{self.role}"

    @property
    def learns(self) -> bool:
        """False if the profile is that of a simulated engine, which is exact."""
        return self.profile is None or self.profile.origin == MEASURED


class ModelFleet:
    """See the module's text."""

    def __init__(
        self,
        planned: PlannedModel,
        acts: bool,
        name: str,
        keys: FleetKeys = ONLY_GROUP,
        *,
        has_prefill: bool = False,
    ) -> None:
        """`acts` is false if the deployment file lets the planner order nothing. The name is the key of the fleet in
        events (`core.events.scale.fleet_key`). `has_prefill` says that prefill workers of the model are sized, too."""
        self.planned = planned
        self.name = name
        self.keys = keys
        self.settings = PlannerSettings(planned.settings, acts, name, has_prefill=has_prefill)
        self.forecasts = ForecastProcess()
        """Idle while the settings name no library's forecaster."""
        self.last: ScaleDecided | None = None
        """The newest decision of this planner."""
        self.rolled: DemandRolled | None = None
        """The newest period of this planner."""
        self.target: FleetTarget | None = None
        """In the registry, as its watch told last."""
        self.machine: Planner | None = None
        """While this planner leads."""
        self._ready: dict[str, tuple[int, int]] = {}
        """By id: tokens of the cache and slots of the registered workers."""
        self._counted: set[str] = set()
        """Those of them that the machine knows of."""
        self._acknowledged: FleetAcknowledgement | None = None
        """In the registry, until an event has it."""

    def __repr__(self) -> str:
        return f"<ModelFleet of {self.planned.model}, {len(self._ready)} {self.planned.role} workers>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        last, rolled, target = self.last, self.rolled, self.target
        return {
            "settings": self.settings.current.to_mapping(),
            "settings_refused": self.settings.refused,
            "group": self.planned.group,
            "ready": self.ready,
            "starting": 0 if self.machine is None else self.machine.coming,
            "ordered": None if target is None else target.workers,
            "decision": None if last is None else msgspec.to_builtins(last) | {"candidates": len(last.candidates)},
            "demand": None if rolled is None else {"arrivals": rolled.arrivals, "waiting": rolled.waiting},
            "forecasts": {"failures": self.forecasts.failures, "fault": self.forecasts.fault},
        }

    @property
    def ready(self) -> int:
        """Registered workers."""
        return len(self._ready)

    @property
    def rests(self) -> bool:
        """The fleet is at zero, and there is nothing to record but its demand. Only while this planner leads."""
        machine = self.machine
        assert machine is not None
        is_known = self.settings.current == machine.fold.settings and self._acknowledged is None
        return is_known and is_at_rest(machine.fold, self.ready, machine.coming)

    async def follow(self, registry: Registry) -> None:
        """Workers, target, acknowledgement and settings in the registry are known, now and later. Unavailable if it is
        away."""
        await registry.watch(WORKERS, self._on_registered)
        await registry.watch(self.keys.target, self._on_target)
        await registry.watch(self.keys.acknowledged, self._on_acknowledged)
        await self.settings.follow(registry)

    def lead(self, fold: ScaleFold, now_ms: int) -> Planner:
        """The fleet's planner goes on where the fold of its events ends."""
        target = self.target if self.settings.acts else None
        coming = 0 if target is None else max(0, target.workers - self.ready)
        self._counted = set(self._ready)
        it = self.planned
        self.machine = Planner(
            self.settings.current,
            it.profile,
            fold,
            coming=coming,
            now_ms=now_ms,
            has_hand=True,
            model=model_and_role(self.name)[0],
            role=it.role,
        )
        return self.machine

    def speed_model(self) -> SpeedModel | PrefillSpeedModel:
        """An empty one of its requests."""
        kind = PrefillSpeedModel if self.planned.role == PREFILL else SpeedModel
        return kind(self.planned.model, self.planned.profile)

    def appeared(self, at_ms: int) -> list[WorkerReady]:
        """The orders that workers are taken for which were not there in the period before."""
        assert self.machine is not None
        count = len(self._ready.keys() - self._counted)
        self._counted = set(self._ready)
        return [WorkerReady(order, at_ms) for order in self.machine.oldest_orders(count)]

    def period(
        self, earlier: tuple[DemandRolled, ...], rolled: DemandRolled, speed: SpeedModel | PrefillSpeedModel, fence: int
    ) -> PeriodEnded:
        """The period that ends now, with all that is known of the fleet, and those before it that were held back."""
        machine = self.machine
        assert machine is not None
        settings = self.settings.current
        is_learned = self.planned.learns and self._ready  # without a worker there are no bounds of an engine
        if machine.horizon_s is not None:
            self.forecasts.ask(settings, machine.fold.history, machine.horizon_s)
        return PeriodEnded(
            rolled,
            self.ready,
            0,
            speed.learned(self._bounds(), rolled.at_ms) if is_learned else None,
            settings,
            self.settings.acts,
            self._answer(fence),
            self.forecasts.foreseen,
            earlier,
        )

    async def order(self, registry: Registry, fence: int, decision: int, most: int) -> None:
        """The registry has the number of workers that the decision wants. Those that are overdue are included, up to
        `most`. The decision stands in the log, at that sequence."""
        last, machine = self.last, self.machine
        assert last is not None
        assert machine is not None
        drained = max(0, last.ready - last.target)
        workers = min(last.ready - drained + machine.coming, most)
        target = FleetTarget(fence, decision, self.planned.group, workers)
        known = self.target
        if known is None or (known.workers, known.group) != (workers, target.group) or known.fence != fence:
            await registry.put(self.keys.target, target.encode())
            self.target = target

    async def stop(self) -> None:
        """The planner does not lead any more, and the forecast process is gone."""
        self.machine = None
        await self.forecasts.stop()

    def _answer(self, fence: int) -> FleetAcknowledgement | None:
        """The hand's answer to a target of this lead, once. That to another planner's target is not recorded: the hand
        answers again to the first target of this lead."""
        answer, self._acknowledged = self._acknowledged, None
        target = self.target
        if answer is None or target is None or not answer.fence == target.fence == fence:
            return None
        return answer if answer.decision <= target.decision else None

    def _bounds(self) -> EngineBounds:
        """Of the smallest engine of the ready workers."""
        rooms = [room for room, _ in self._ready.values() if room]
        slots = [slots for _, slots in self._ready.values() if slots]
        it = self.planned
        return EngineBounds(min(rooms, default=0), min(slots, default=0), it.pass_tokens, it.devices)

    def _on_registered(self, change: Change) -> None:
        worker = change.key.removeprefix(WORKERS)
        found = registration_of(change)
        if found is None or (found.role, found.model) != (self.planned.role, self.planned.model):
            self._ready.pop(worker, None)
            return
        self._ready[worker] = found.capacity_blocks * found.block_size, found.slots

    def _on_target(self, change: Change) -> None:
        if change.key != self.keys.target:
            return
        try:
            self.target = None if change.value is None else FleetTarget.parse(change.value)
        except PeerError as error:
            _logger.error("%s", error)  # noqa: TRY400  # its text has all
            self.target = None

    def _on_acknowledged(self, change: Change) -> None:
        if change.key != self.keys.acknowledged or change.value is None:
            return
        try:
            self._acknowledged = FleetAcknowledgement.parse(change.value)
        except PeerError as error:
            _logger.error("%s", error)  # noqa: TRY400  # its text has all
