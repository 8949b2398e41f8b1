"""FleetFold: the scale stream of a planner that sizes several models, a `ScaleFold` for each.

Events of a planner of one model name none: NO_MODEL. A stream has both kinds if the deployment got a second model.
Prefill workers of a model have a fold of their own, which has their part of its demand.
"""

from __future__ import annotations

from core.events import Event, UnknownEvent
from core.events.kv import PREFILL
from core.events.scale import DemandRolled, ScaleEvent, fleet_key, fleet_of, model_of, prefill_part
from projections.scaling.scale_fold import ScaleFold


class FleetFold:
    """Memory is that of a `ScaleFold` for each model that the stream names."""

    def __init__(self) -> None:
        self._folds: dict[str, ScaleFold] = {}
        self._newest = ScaleFold()
        """The fold with the last period."""

    def __repr__(self) -> str:
        return f"<FleetFold of {len(self._folds)} models>"

    @property
    def fleets(self) -> list[str]:
        """The fleets of the events so far, sorted; those of decode workers have the names of their models."""
        return sorted(self._folds)

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """The position that the next period counts from; empty before the first one."""
        return self._newest.cursor

    @property
    def rolled_ms(self) -> int:
        """The end of the last period; 0 before the first one."""
        return self._newest.rolled_ms

    def of(self, fleet: str) -> ScaleFold:
        """The fleet's own; empty before its first event."""
        return self._folds.setdefault(fleet, ScaleFold())

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event is folded by its fleet. O(1)."""
        if not isinstance(event, ScaleEvent):
            return
        fold = self.of(fleet_of(event))
        fold.apply(event)
        if isinstance(event, DemandRolled):
            self._newest = fold
            part = prefill_part(event)
            if part is not None:
                self.of(fleet_key(model_of(event), PREFILL)).apply(part)
