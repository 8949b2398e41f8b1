"""PlannerSettings: a planner's settings as they are now: those of the deployment file, and over them the registry's.

A value in the registry that is no settings, or that the file does not allow, is refused, and the last ones stay.
Numbers of workers and their times (PREFILL_KEYS) are of decode workers, unless they stand below `prefill`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from core.errors import CallerError, did_you_mean
from core.events.kv import DECODE, PREFILL
from core.events.scale import NO_MODEL, fleet_key, model_and_role
from projections.scaling.scale_settings import (
    JUDGE,
    ON,
    PREFILL_KEYS,
    PREFILL_WORKERS,
    SLO,
    SLO_KEYS,
    ScaleSettings,
)
from streams.registry import Change, Registry

PLANNER_SETTINGS_KEY = "planner/settings"
MODE, ADVISE, ACT = "mode", "advise", "act"
MODELS = "models"
"""Key of the settings of each model by its name, where the planner sizes several."""
PREFILL_FLEET = fleet_key(NO_MODEL, PREFILL)
"""Of the only model, and in settings of all models."""
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

    def __init__(
        self, configured: ScaleSettings, acts: bool, fleet: str = NO_MODEL, *, has_prefill: bool = False
    ) -> None:
        """Of the workers with that key (`core.events.scale.fleet_key`). `has_prefill` says that prefill workers of
        their model are sized, too."""
        self.current = configured
        self.acts = acts
        """False if the planner decides and tells, and orders nothing."""
        self.refused = ""
        """Why the registry's present value is not used; empty if it is."""
        self._configured = configured
        self._may_act = acts
        self._fleet = fleet
        self._has_prefill = has_prefill

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
            given = given_for(self._fleet, parsed(change.value))
            role = model_and_role(self._fleet)[1]
            self.current, self.acts = merged(
                self._configured, self._may_act, given, role, has_prefill=self._has_prefill
            )
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


def own_settings(fleet: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The own ones of a fleet among the given settings: below MODELS those of a model, and below PREFILL_WORKERS those
    of prefill workers. CallerError if there are none by the form, or one that cannot be their own."""
    model, role = model_and_role(fleet)
    of_model = dict(given) if not model else _of_model(model, given)
    if role == DECODE:
        return of_model
    place = f"planner.{MODELS}.{model}.{PREFILL_WORKERS}" if model else f"planner.{PREFILL_WORKERS}"
    own = of_model.get(PREFILL_WORKERS, {})
    if not isinstance(own, dict):
        raise CallerError(f"{place}: give settings of prefill workers")
    for key in own:
        if key not in PREFILL_KEYS:
            near = did_you_mean(str(key), PREFILL_KEYS) or f"; there are {', '.join(PREFILL_KEYS)}"
            raise CallerError(f"{place}.{key}: prefill workers have no such setting of their own{near}")
    return own


def _of_model(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    models = given.get(MODELS, {})
    own = models.get(model, {}) if isinstance(models, dict) else None
    if not isinstance(own, dict):
        raise CallerError(f"planner.{MODELS}: give settings by the names of models")
    if common := [key for key in OF_ALL if key in own]:
        raise CallerError(f"planner.{MODELS}.{model}.{common[0]}: all models have it in common; set it without a model")
    return own


def with_own_settings(fleet: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, with these as the fleet's own."""
    model, role = model_and_role(fleet)
    if role == PREFILL:
        of_model = own_settings(model, given)
        return with_own_settings(model, given, _with(of_model, PREFILL_WORKERS, own))
    if not model:
        return dict(own)
    return _with(given, MODELS, _with(given.get(MODELS, {}), model, own))


def _with(given: Mapping[str, Any], key: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings with this part below the key; without the key if the part is empty."""
    found = {**given, key: dict(part)}
    return found if part else {each: found[each] for each in found if each != key}


def given_for(fleet: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings of one fleet: those of all models, its model's own over them, and of prefill workers theirs
    over these. Under NO_MODEL they are those that are given."""
    model, role = model_and_role(fleet)
    of_all = {key: value for key, value in given.items() if key != MODELS} if model else given
    found = {**of_all, **(own_settings(model, given) if model else {})}
    found.pop(PREFILL_WORKERS, None)
    if role == DECODE:
        return found
    own = {**own_settings(PREFILL_FLEET, given), **(own_settings(fleet, given) if model else {})}
    return {key: value for key, value in found.items() if key not in PREFILL_KEYS} | own


def merged(
    configured: ScaleSettings, may_act: bool, given: Mapping[str, Any], role: str = DECODE, *, has_prefill: bool = False
) -> tuple[ScaleSettings, bool]:
    """The configured settings with those given over them, and whether the planner acts. CallerError if they are no
    settings, or more than the deployment file allows: no more workers, and no orders where it says `advise`. With
    `has_prefill`, prefill workers of the model are sized, too."""
    values = configured.to_mapping()
    place = "planner" if role == DECODE else f"planner.{PREFILL_WORKERS}"
    slo = {**values.pop(SLO), **{key: given[key] for key in SLO_KEYS if key in given}}
    mode = given.get(MODE, ACT if may_act else ADVISE)
    rest = {key: value for key, value in given.items() if key != MODE and key not in SLO_KEYS}
    found = ScaleSettings.parse({**values, **rest, SLO: slo})
    if mode not in {ADVISE, ACT}:
        raise CallerError(f"planner.mode: {mode!r} is neither {ADVISE} nor {ACT}")
    if mode == ACT and not may_act:
        raise CallerError("planner.mode: the deployment file says `advise`, so nobody would carry orders out")
    if found.max > configured.max:
        raise CallerError(f"{place}.max: the deployment file allows {configured.max} at most")
    if not found.min and configured.min:
        keeps = "front ends keep what they need without a worker" if role == DECODE else "the last one may end"
        raise CallerError(
            f"{place}.min: at least 1, since the deployment file says {configured.min}: with 0 there, {keeps}"
        )
    if has_prefill and found.judge == ON:
        raise CallerError(f"planner.{JUDGE}: a judge simulates no prefill workers")
    return found, mode == ACT
