"""FleetFold: the scale stream of a planner that sizes several models, a `ScaleFold` for each.

Events of a planner of one model name none: NO_MODEL. A stream has both kinds if the deployment got a second model.
"""

from __future__ import annotations

from core.events import Event, UnknownEvent
from core.events.scale import DemandRolled, ScaleEvent, model_of
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
    def models(self) -> list[str]:
        """The models of the events so far, sorted."""
        return sorted(self._folds)

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """The position that the next period counts from; empty before the first one."""
        return self._newest.cursor

    @property
    def rolled_ms(self) -> int:
        """The end of the last period; 0 before the first one."""
        return self._newest.rolled_ms

    def of(self, model: str) -> ScaleFold:
        """The model's own; empty before its first event."""
        return self._folds.setdefault(model, ScaleFold())

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event is folded by its model. O(1)."""
        if not isinstance(event, ScaleEvent):
            return
        fold = self.of(model_of(event))
        fold.apply(event)
        if isinstance(event, DemandRolled):
            self._newest = fold
