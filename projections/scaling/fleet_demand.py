"""FleetDemand: the demand of each of several models, counted from one routing stream.

An event that names no model belongs to that of its request, which an earlier event named. Ends of requests that were
never named count for no model. Prefill workers of a model have no demand of their own: their settings say that their
model's demand names their part.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from core.events import (
    Event,
    RequestFinished,
    RequestPrefilled,
    RequestQueued,
    RequestRejected,
    RequestRouted,
    RequestTurnedAway,
    UnknownEvent,
)
from core.events.kv import DECODE
from core.events.scale import NO_MODEL, DemandRolled, model_and_role
from projections.scaling.request_demand import GOES_ON, OPEN_MAX, RequestDemand
from projections.scaling.scale_settings import ScaleSettings


class FleetDemand:
    """See the module's text. Under NO_MODEL alone the requests of all models are one demand. Memory is bounded by
    OPEN_MAX requests, and by that of a `RequestDemand` for each model."""

    def __init__(self, settings: Mapping[str, ScaleSettings]) -> None:
        """By fleet, the bounds of service that `attained` counts by."""
        self._demands: dict[str, RequestDemand] = {}
        self._models: dict[str, str] = {}
        """By request that came and has not ended, in the order of their arrivals."""
        for fleet, each in settings.items():
            self.use(fleet, each)

    def __repr__(self) -> str:
        return f"<FleetDemand of {len(self._demands)} models>"

    def use(self, fleet: str, settings: ScaleSettings) -> None:
        """These bounds count for the model from here on. A model that is new begins with the next event. A fleet of
        prefill workers has its model's bounds, and comes behind its model or before it."""
        model, role = model_and_role(fleet)
        if model not in self._demands:
            self._demands[model] = RequestDemand(settings)
        if role == DECODE:
            self._demands[model].settings = settings
        else:
            self._demands[model].has_prefill = True

    def counts(self, model: str) -> bool:
        """True if the model's demand is counted."""
        return model in self._demands

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event counts in the present period of its model. O(1)."""
        if NO_MODEL in self._demands:
            self._demands[NO_MODEL].apply(event)
        model = self._model_of(event)
        if model in self._demands and model:
            self._demands[model].apply(event)

    def skip(self, at_ms: int) -> None:
        """All that was counted so far belongs to earlier periods, the last of which ended then. O(open requests)."""
        for demand in self._demands.values():
            demand.skip(at_ms)

    def roll(self, model: str, at_ms: int, period_s: int, cursor: Mapping[str, tuple[int, int]]) -> DemandRolled:
        """The model's period that ends now; its next one is empty. O(open requests)."""
        rolled = self._demands[model].roll(at_ms, period_s, cursor)
        return replace(rolled, model=model) if model else rolled

    def _model_of(self, event: Event | UnknownEvent) -> str | None:
        match event:
            case RequestQueued() | RequestRouted():
                if event.request not in self._models and len(self._models) >= OPEN_MAX:
                    del self._models[next(iter(self._models))]
                return self._models.setdefault(event.request, event.model)
            case RequestTurnedAway() | RequestRejected():
                return self._models.pop(event.request, event.model)
            case RequestPrefilled():
                return self._models.get(event.request)
            case RequestFinished() if event.outcome in GOES_ON:
                return self._models.get(event.request)
            case RequestFinished():
                return self._models.pop(event.request, None)
            case _:
                return None
