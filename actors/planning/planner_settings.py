"""PlannerSettings: a planner's settings as they are now: those of the deployment file, and over them the registry's.

A value in the registry that is no settings, or that the file does not allow, is refused, and the last ones stay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from core.errors import CallerError
from core.events.scale import NO_MODEL
from projections.scaling.scale_settings import SLO, SLO_KEYS, ScaleSettings
from streams.registry import Change, Registry

PLANNER_SETTINGS_KEY = "planner/settings"
MODE, ADVISE, ACT = "mode", "advise", "act"
MODELS = "models"
"""Key of the settings of each model by its name, where the planner sizes several."""
OF_ALL = (MODE, "devices_max", "period_s")
"""Settings that all models have in common."""
PROFILE_FILE = "profile"
"""Key of the file's section that names the measured profile with which the planner begins."""
HAND, SUPERVISOR, KUBERNETES, VIRTUAL = "hand", "supervisor", "kubernetes", "virtual"
HANDS = (SUPERVISOR, KUBERNETES, VIRTUAL)
"""Programs that carry a planner's targets out: `contrail up`, the planner's own process at a Kubernetes, or an
orchestrator of others."""

_logger = logging.getLogger(__name__)


class PlannerSettings:
    """Followed from the registry; one event loop uses it."""

    def __init__(self, configured: ScaleSettings, acts: bool, model: str = NO_MODEL) -> None:
        """Of one of several models, unless it is NO_MODEL."""
        self.current = configured
        self.acts = acts
        """False if the planner decides and tells, and orders nothing."""
        self.refused = ""
        """Why the registry's present value is not used; empty if it is."""
        self._configured = configured
        self._may_act = acts
        self._model = model

    def __repr__(self) -> str:
        return f"<PlannerSettings of {self.current.min} to {self.current.max} workers>"

    async def follow(self, registry: Registry) -> None:
        """The registry's settings count, now and after each change. Unavailable if it is away."""
        await registry.watch(PLANNER_SETTINGS_KEY, self.on_change)

    def on_change(self, change: Change) -> None:
        """The value counts, or is refused."""
        if change.key != PLANNER_SETTINGS_KEY:
            return
        try:
            given = given_for(self._model, parsed(change.value))
            self.current, self.acts = merged(self._configured, self._may_act, given)
            self.refused = ""
        except CallerError as error:
            self.refused = str(error)
            _logger.error("live settings of the planner are refused, the last ones stay: %s", error)  # noqa: TRY400


def parsed(value: bytes | None) -> dict[str, Any]:
    """The settings in a value of the registry; CallerError if it is no JSON object."""
    try:
        given = {} if value is None else orjson.loads(value)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise CallerError(
            f"{PLANNER_SETTINGS_KEY} in the registry holds no JSON object: `contrail scale unset --all` mends it"
        )
    return given


def own_settings(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own of the given settings, below MODELS. CallerError if these are no settings of models, or have one
    that all models have in common."""
    models = given.get(MODELS, {})
    own = models.get(model, {}) if isinstance(models, dict) else None
    if not isinstance(own, dict):
        raise CallerError(f"planner.{MODELS}: give settings by the names of models")
    if common := [key for key in OF_ALL if key in own]:
        raise CallerError(f"planner.{MODELS}.{model}.{common[0]}: all models have it in common; set it without a model")
    return own


def with_own_settings(model: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, with these as the model's own."""
    models = {**given.get(MODELS, {}), model: dict(own)}
    models = {name: each for name, each in models.items() if each}
    return {**{key: value for key, value in given.items() if key != MODELS}, **({MODELS: models} if models else {})}


def given_for(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings of one model: those of all models, and its own over them. Under NO_MODEL they are those that
    are given."""
    if not model:
        return dict(given)
    return {**{key: value for key, value in given.items() if key != MODELS}, **own_settings(model, given)}


def merged(configured: ScaleSettings, may_act: bool, given: Mapping[str, Any]) -> tuple[ScaleSettings, bool]:
    """The configured settings with those given over them, and whether the planner acts. CallerError if they are no
    settings, or more than the deployment file allows: no more workers, and no orders where it says `advise`."""
    values = configured.to_mapping()
    slo = {**values.pop(SLO), **{key: given[key] for key in SLO_KEYS if key in given}}
    mode = given.get(MODE, ACT if may_act else ADVISE)
    rest = {key: value for key, value in given.items() if key != MODE and key not in SLO_KEYS}
    found = ScaleSettings.parse({**values, **rest, SLO: slo})
    if mode not in {ADVISE, ACT}:
        raise CallerError(f"planner.mode: {mode!r} is neither {ADVISE} nor {ACT}")
    if mode == ACT and not may_act:
        raise CallerError("planner.mode: the deployment file says `advise`, so nobody would carry orders out")
    if found.max > configured.max:
        raise CallerError(f"planner.max: the deployment file allows {configured.max} at most")
    if not found.min and configured.min:
        raise CallerError(
            f"planner.min: at least 1, since the deployment file says {configured.min}: with 0 there, front ends keep "
            "what they need without a worker"
        )
    return found, mode == ACT
