"""The section `planner` of a deployment file, taken apart: the settings of each model, and of its prefill workers.

Without `models` it is about the one model of the file. With `models`, its keys are those of all models, and each model
has its own over them. Below `prefill` a model's prefill workers have keys of their own, over those of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actors.planning.planner_settings import HAND, KUBERNETES, MODE, MODELS, OF_ALL, PROFILE_FILE
from core.events.kv import DECODE, PREFILL
from core.events.scale import fleet_key
from projections.scaling.scale_settings import PREFILL_WORKERS, PRIORITY, SLO, ScaleSettings, prefill_settings

NOT_SETTINGS = frozenset({MODE, HAND, KUBERNETES, PROFILE_FILE, MODELS, PREFILL_WORKERS})
"""Keys that are no fields of ScaleSettings."""
RESOURCE = "resource"
"""Key of `kubernetes` that each worker group has of its own."""


class PlannedSection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the section that is about one model's workers of one role."""

    model: str
    """Its name for clients; empty if the file does not name it."""
    role: str = DECODE
    settings: ScaleSettings
    profile: str
    """The file of the measured profile; empty without one."""
    kubernetes: Mapping[str, Any]
    is_given: bool = True
    """The file has keys of these workers, and not of those of all models alone; False of prefill workers without any.
    """

    @property
    def fleet(self) -> str:
        """The key of its workers (`core.events.scale.fleet_key`)."""
        return fleet_key(self.model, self.role)

    @property
    def label(self) -> str:
        """The name of its workers for people: that of the model, and with it the role of prefill workers. Empty of
        decode workers of the only model."""
        return self.model if self.role == DECODE else f"{self.model}/{self.role}".removeprefix("/")

    @property
    def place(self) -> str:
        """Its place in the file: `planner.models.MODEL.prefill`."""
        of_model = f".{MODELS}.{self.model}" if self.model else ""
        return f"planner{of_model}{f'.{PREFILL_WORKERS}' if self.role == PREFILL else ''}"


def scale_settings(planner: Mapping[str, Any]) -> ScaleSettings:
    """Those of all models. CallerError if they cannot be."""
    return ScaleSettings.parse({key: value for key, value in planner.items() if key not in NOT_SETTINGS})


def planned_sections(planner: Mapping[str, Any]) -> tuple[PlannedSection, ...]:
    """Two for each model, in the order of the file: that of its decode workers, then that of its prefill workers, which
    there may be none of. CallerError or ValueError if one cannot be."""
    if MODELS not in planner:
        if PRIORITY in planner:
            raise ValueError(f"planner.{PRIORITY}: it is of several models; give them below `planner.{MODELS}`")
        return _sections("", planner, PREFILL_WORKERS in planner)
    models = planner[MODELS]
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"planner.{MODELS}: give the names of models, each with its settings")
    return tuple(
        section
        for model, own in models.items()
        for section in _sections(str(model), _merged(planner, str(model), own or {}), PREFILL_WORKERS in (own or {}))
    )


def _merged(planner: Mapping[str, Any], model: str, own: object) -> dict[str, Any]:
    """The keys of all models, and those of one over them."""
    place = f"planner.{MODELS}.{model}"
    if not isinstance(own, Mapping):
        raise ValueError(f"{place}: {own!r} has no keys")  # noqa: TRY004 - as msgspec wants it
    for key in (*OF_ALL, HAND, MODELS):
        if key in own:
            raise ValueError(f"{place}.{key}: all models have it in common; give it as `planner.{key}`")
    common = {key: value for key, value in planner.items() if key != MODELS}
    nested = {
        key: {**_mapping(common, key, "planner"), **_mapping(own, key, place)}
        for key in (SLO, KUBERNETES, PREFILL_WORKERS)
        if key in common or key in own
    }
    return {**common, **own, **nested}


def _mapping(given: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    found = given.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{place}.{key}: {found!r} has no keys")  # noqa: TRY004 - as msgspec wants it
    return found


def _sections(model: str, planner: Mapping[str, Any], names_prefill: bool) -> tuple[PlannedSection, PlannedSection]:
    settings, kubernetes = scale_settings(planner), planner.get(KUBERNETES, {})
    decode = PlannedSection(model=model, settings=settings, profile=_profile(planner, "planner"), kubernetes=kubernetes)
    place = f"{decode.place}.{PREFILL_WORKERS}"
    own = _mapping(planner, PREFILL_WORKERS, decode.place)
    shared = kubernetes if isinstance(kubernetes, Mapping) else {}
    prefill = PlannedSection(
        model=model,
        role=PREFILL,
        settings=prefill_settings(settings, {key: own[key] for key in own if key not in {PROFILE_FILE, KUBERNETES}}),
        profile=_profile(own, place) or decode.profile,
        kubernetes={key: shared[key] for key in shared if key != RESOURCE} | dict(_mapping(own, KUBERNETES, place)),
        is_given=names_prefill,
    )
    return decode, prefill


def _profile(given: Mapping[str, Any], place: str) -> str:
    profile = given.get(PROFILE_FILE, "")
    if not isinstance(profile, str):
        raise ValueError(f"{place}.{PROFILE_FILE}: {profile!r} is no name of a file")  # noqa: TRY004 - as msgspec wants it
    return profile
