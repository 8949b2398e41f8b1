"""The section `planner` of a deployment file, taken apart: the settings of each model.

Without `models` it is about the one worker group of the file. With `models`, its keys are those of all models, and each
model has its own over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actors.planning.planner_settings import HAND, KUBERNETES, MODE, MODELS, OF_ALL, PROFILE_FILE
from projections.scaling.scale_settings import PRIORITY, SLO, ScaleSettings

NOT_SETTINGS = frozenset({MODE, HAND, KUBERNETES, PROFILE_FILE, MODELS})
"""Keys that are no fields of ScaleSettings."""


class PlannedSection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the section that is about one model."""

    model: str
    """Its name for clients; empty if the file does not name it."""
    settings: ScaleSettings
    profile: str
    """The file of the measured profile; empty without one."""
    kubernetes: Mapping[str, Any]


def scale_settings(planner: Mapping[str, Any]) -> ScaleSettings:
    """Those of all models. CallerError if they cannot be."""
    return ScaleSettings.parse({key: value for key, value in planner.items() if key not in NOT_SETTINGS})


def planned_sections(planner: Mapping[str, Any]) -> tuple[PlannedSection, ...]:
    """One for each model, in the order of the file. CallerError or ValueError if one cannot be."""
    if MODELS not in planner:
        if PRIORITY in planner:
            raise ValueError(f"planner.{PRIORITY}: it is of several models; give them below `planner.{MODELS}`")
        return (_section("", planner),)
    models = planner[MODELS]
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"planner.{MODELS}: give the names of models, each with its settings")
    return tuple(_section(str(model), _merged(planner, str(model), own or {})) for model, own in models.items())


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
        for key in (SLO, KUBERNETES)
        if key in common or key in own
    }
    return {**common, **own, **nested}


def _mapping(given: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    found = given.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{place}.{key}: {found!r} has no keys")  # noqa: TRY004 - as msgspec wants it
    return found


def _section(model: str, planner: Mapping[str, Any]) -> PlannedSection:
    profile = planner.get(PROFILE_FILE, "")
    if not isinstance(profile, str):
        raise ValueError(f"planner.{PROFILE_FILE}: {profile!r} is no name of a file")  # noqa: TRY004 - as msgspec wants it
    return PlannedSection(
        model=model, settings=scale_settings(planner), profile=profile, kubernetes=planner.get(KUBERNETES, {})
    )
